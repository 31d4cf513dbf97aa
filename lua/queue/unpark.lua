-- Wakes a live run that has had no outstanding message for `interval` ms.
--
-- Runs that wait for hooks and runs with dead letters are left alone. Where waking it brings no
-- event, it is woken ever less often, up to once an hour.
--
-- KEYS: parked, hooks
-- ARGV: base, interval, topic, message_id, run_id, queue_name, deployment_id, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local MAX_DOUBLINGS = 16

local at = now()
if not is_old(redis.call('ZSCORE', parked, run_id), at, interval) then
  return { 'LEFT' }
end
local book = open_run(base, run_id)
if count_of(book, 'dead') > 0 or redis.call('EXISTS', hooks) == 1 then
  redis.call('ZADD', parked, after_pause(at, interval, LONG), run_id)
  return { 'LEFT' }
end
local length = tostring(known_run(base, run_id).length)
local rewakes = 0
if get(book, 'rewoken_length') == length then
  rewakes = count_of(book, 'rewakes')
  local pause = math.min(interval * 2 ^ math.min(rewakes, MAX_DOUBLINGS), LONG)
  local rest = count_of(book, 'rewoken_at') + pause - at
  if rest > 0 then
    redis.call('ZADD', parked, after_pause(at, interval, rest), run_id)
    return { 'LEFT' }
  end
end
put(book, 'rewakes', tostring(rewakes + 1))
put(book, 'rewoken_at', at)
put(book, 'rewoken_length', length)
return rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'wake', step = '', key = '', queue = queue_name,
  deployment = deployment_id, body = body,
})
