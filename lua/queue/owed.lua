-- Tells what a run has been owed for `interval` ms: a wake, and the messages of steps.
--
-- It looks at a bounded number of steps, in the order of their creation; `after` is at first empty,
-- then how many were looked at, and since when the run is owed the first of what it is owed, empty
-- where that is paid now. A run that has not been owed anything for so long is looked at again when
-- that may be.
--
-- KEYS: run, owed
-- ARGV: base, run_id, interval, after
-- Returns: OK wake steps next; wake is since when it is owed, or empty, a step is since when its
--   message is, its id and its name, next is `after` of the next call, or empty
--
-- @unwaited
-- @include lib/clock
-- @include lib/debt
-- @include lib/rescue

local STEPS_AT_ONCE = 500

local at = now()
local state, count = look_at(run, 'steps')
if not is_live(base, run_id) then
  redis.call('ZREM', owed, run_id)
  return { 'OK', '', {}, '' }
end

-- The steps from a place to another one, in the order of their creation: their ids and records.
local function read_steps(first, last)
  local places, fields = {}, {}
  for place = first, last do
    places[#places + 1] = 'steps:' .. place
  end
  local ids = redis.call('HMGET', run, unpack(places))
  for i, step_id in ipairs(ids) do
    fields[i] = step_field(step_id)
  end
  return ids, redis.call('HMGET', run, unpack(fields))
end

local is_first_look = after == ''
local wake = is_first_look and is_old(state.wake_owed, at, interval)
local seen, earliest = 0, state.wake_owed ~= '' and state.wake_owed or at
if not is_first_look then
  seen, earliest = string.match(after, '^(%d+) (%d*)$')
  seen = tonumber(seen)
end
local steps = {}
local total = state.steps_owed > 0 and tonumber(count or '0') or 0
local last = math.min(seen + STEPS_AT_ONCE, total)
if seen < last then
  local ids, records = read_steps(seen + 1, last)
  for i, record in ipairs(records) do
    local since = owed_since(words_of(record))
    if is_old(since, at, interval) then
      steps[#steps + 1] = { since, ids[i] }
    elseif since ~= '' and earliest ~= '' and tonumber(since) < tonumber(earliest) then
      earliest = since
    end
  end
end
if #steps > 0 then
  local fields = {}
  for i, step in ipairs(steps) do
    fields[i] = name_field(step[2])
  end
  for i, name in ipairs(redis.call('HMGET', run, unpack(fields))) do
    steps[i][3] = name
  end
end
if wake or #steps > 0 then
  earliest = ''
end
if last < total then
  local following = string.format('%.0f %s', last, earliest)
  return { 'OK', wake and state.wake_owed or '', steps, following }
end
if earliest ~= '' then
  -- A server that is full takes no growing command: then it is looked at each time.
  redis.pcall('ZADD', owed, 'XX', earliest, run_id)
end
return { 'OK', wake and state.wake_owed or '', steps, '' }
