-- Wakes a live run that has had no outstanding message for `interval` ms.
--
-- Runs that wait for hooks and runs with dead letters are left alone. Where waking it brings no
-- event, it is woken ever less often, up to once an hour.
--
-- KEYS: parked, hooks, events
-- ARGV: base, interval, topic, message_id, run_id, queue_name, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local MAX_DOUBLINGS = 16

local at = now()
if not is_old(parked, run_id, at, interval) then
  return { 'LEFT' }
end
local state = load_bookkeeping(base, run_id)
if state.dead > 0 or redis.call('EXISTS', hooks) == 1 then
  look_again(parked, run_id, at, interval, LONG)
  return { 'LEFT' }
end
local length = tostring(redis.call('XLEN', events))
local rewakes = 0
if state.rewoken_length == length then
  rewakes = state.rewakes
  local pause = math.min(interval * 2 ^ math.min(rewakes, MAX_DOUBLINGS), LONG)
  local rest = state.rewoken_at + pause - at
  if rest > 0 then
    look_again(parked, run_id, at, interval, rest)
    return { 'LEFT' }
  end
end
redis.call('HSET', run_queue_key(base, run_id), 'rewakes', tostring(rewakes + 1),
  'rewoken_at', at, 'rewoken_length', length)
return rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'wake', step = '', key = '', queue = queue_name,
  body = body,
})
