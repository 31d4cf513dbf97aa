-- Seeks the runs of messages whose record is gone, and sets right what those keep of them: such a
-- message has ended, and what was to come of it is owed again.
--
-- It looks at a page of all runs, the latest first, up to the first one that has some of them.
-- `before` is the run behind which it goes on, at first empty; at the end the search is given up.
--
-- KEYS: lost, runs
-- ARGV: base, before, members...
-- Returns: OK next found, empty when the search is over; found are pairs of a run and a message
--
-- @include lib/clock
-- @include lib/dead

local RUNS_AT_ONCE, FIELDS_AT_ONCE = 100, 1000

-- Those that are still sought, and the fields that a run has of them.
local function still_lost()
  local ids, fields = {}, {}
  for _, member in ipairs(members) do
    if redis.call('ZSCORE', lost, member) then
      ids[#ids + 1] = string.match(member, '/(.*)$')
      fields[#fields + 1] = 'message:' .. ids[#ids]
    end
  end
  return ids, fields
end

-- The steps of a run by their messages. The messages don't know: their records are gone.
local function steps_by_message(bookkeeping)
  local steps, cursor = {}, '0'
  repeat
    local reply = redis.call('HSCAN', bookkeeping, cursor, 'MATCH', 'step:*',
      'COUNT', FIELDS_AT_ONCE)
    for i = 1, #reply[2], 2 do
      steps[reply[2][i + 1]] = string.sub(reply[2][i], #'step:' + 1)
    end
    cursor = reply[1]
  until cursor == '0'
  return steps
end

local function mend(at, run_id, message_id, step_id)
  local bookkeeping = run_queue_key(base, run_id)
  local message = { run = run_id, kind = step_id and 'step' or 'replay', step = step_id }
  redis.call('HDEL', bookkeeping, 'message:' .. message_id)
  if step_id then
    redis.call('HDEL', bookkeeping, 'step:' .. step_id)
  elseif redis.call('HGET', bookkeeping, 'wake') == message_id then
    redis.call('HDEL', bookkeeping, 'wake')
  end
  unhold(base, run_id, message_id)
  owe_again(base, at, message)
  if find(base, message_id) then
    count_letter(base, at, message)
  else
    count_down(base, at, run_id)
  end
end

local ids, fields = still_lost()
if #ids == 0 then
  return { 'OK', '', {} }
end
local at = now()
local page = redis.call('ZRANGE', runs, before == '' and '+' or '(' .. before, '-', 'BYLEX', 'REV',
  'LIMIT', 0, RUNS_AT_ONCE)
local found = {}
for _, run_id in ipairs(page) do
  local bookkeeping = run_queue_key(base, run_id)
  if redis.call('EXISTS', bookkeeping) == 1 then
    local steps
    for i, topic in ipairs(redis.call('HMGET', bookkeeping, unpack(fields))) do
      if topic then
        steps = steps or steps_by_message(bookkeeping)
        found[#found + 1] = { run_id, ids[i] }
        redis.call('ZREM', held_key(base, run_id), topic .. '/' .. ids[i])
        mend(at, run_id, ids[i], steps[ids[i]])
      end
    end
  end
  if #found > 0 then
    return { 'OK', run_id, found }
  end
end
if #page == RUNS_AT_ONCE then
  return { 'OK', page[#page], {} }
end
redis.call('ZREM', lost, unpack(members))
return { 'OK', '', {} }
