-- Sends the message of a step that has been owed it for `interval` ms; its writer is gone.
--
-- KEYS: owed, step
-- ARGV: base, interval, topic, message_id, run_id, step_id, idempotency, queue_name, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local at = now()
local debt = debt_of_step(run_id, step_id)
if not is_old(owed, debt, at, interval) then
  return { 'LEFT' }
end
local status = redis.call('HGET', step, 'status')
if not status or is_terminal(status) or not is_live(base, run_id) then
  redis.call('ZREM', owed, debt)
  return { 'LEFT' }
elseif load_bookkeeping(base, run_id).dead > 0 then
  -- Not for long: the end of another message's letter does not know of this step.
  look_again(owed, debt, at, interval, interval)
  return { 'LEFT' }
end
local reply = rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'step', step = step_id, key = idempotency,
  queue = queue_name, body = body,
})
if redis.call('HEXISTS', run_queue_key(base, run_id), 'step:' .. step_id) == 0 then
  -- A message of another kind holds its key, and stands for no step.
  look_again(owed, debt, at, interval, interval)
  return { 'LEFT' }
end
redis.call('ZREM', owed, debt)
return reply
