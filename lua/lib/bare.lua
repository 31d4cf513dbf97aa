-- @include lib/cleaning
-- @include lib/keys
-- @include lib/step_record

-- Messages of a run whose user data is deleted (contract, section 5, run retention): there may be
-- thousands, so the end of the run touches none of them. Whoever reads one looks at the run.

local SHOWN = { 'run', 'kind', 'step', 'key', 'queue', 'deployment', 'attempt', 'failures', 'lost',
  'receipt', 'enqueued_at', 'due_at', 'reason', 'died_at', 'postponed', 'postponed_since' }

-- Whether nothing of a run's messages is shown but what they are: its user data is deleted, or it
-- was removed just now.
local function is_bare(base, run_id)
  if run_id == '' then
    return false
  end
  local run = redis.call('HMGET', run_key(base, run_id), 'status', 'expired_at')
  return run[2] and true or not run[1] and is_removing(base, run_id) and true or false
end

-- A bare message, as pairs of its hash: `bare` and the name of its step in place of its content.
-- @deferred
local function bare_row(...)
  local base, message = ...
  local values = redis.call('HMGET', message, unpack(SHOWN))
  local row = { 'bare', '1' }
  for i, name in ipairs(SHOWN) do
    if values[i] then
      row[#row + 1] = name
      row[#row + 1] = values[i]
    end
  end
  if values[3] ~= '' then
    row[#row + 1] = 'step_name'
    row[#row + 1] = redis.call('HGET', run_key(base, values[1]), name_field(values[3])) or ''
  end
  return row
end

-- A message as its readers get it: the pairs of its hash.
local function message_row(base, message, bare)
  if bare then
    return bare_row(base, message)
  end
  return redis.call('HGETALL', message)
end
