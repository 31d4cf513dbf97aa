-- Wakes a run that has been owed a wake for `interval` ms; its writer is gone.
--
-- A run with dead letters is the operator's. One whose wake is due, or that has a leased or held
-- replay, sees to itself: it is looked at again after another interval.
--
-- KEYS: owed, held
-- ARGV: base, interval, topic, message_id, run_id, queue_name, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local at = now()
if not is_old(owed, run_id, at, interval) then
  return { 'LEFT' }
end
local state = load_bookkeeping(base, run_id)
if state.dead > 0 then
  look_again(owed, run_id, at, interval, LONG)
  return { 'LEFT' }
elseif state.wake or state.leased or redis.call('EXISTS', held) == 1 then
  look_again(owed, run_id, at, interval, interval)
  return { 'LEFT' }
end
return rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'wake', step = '', key = '', queue = queue_name,
  body = body,
})
