-- Sends the message of a step that has been owed it for `interval` ms; its writer is gone.
--
-- KEYS: run
-- ARGV: base, interval, topic, message_id, run_id, step_id, idempotency, queue_name,
--   deployment_id, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local at = now()
local state, record = look_at(run, step_field(step_id))
local step = record and words_of(record)
if not step or not is_live(base, run_id) or not is_old(owed_since(step), at, interval) then
  return { 'LEFT' }
end

-- Leaves the step alone for another interval.
local function look_again()
  step.owed = distance_of(step.created_at, after_pause(at, interval, interval))
  redis.call('HSET', run, step_field(step_id), record_of(step))
  return { 'LEFT' }
end

if count_of(open_run(base, run_id), 'dead') > 0 then
  -- Not for long: the end of another message's letter does not know of this step.
  return look_again()
end
local reply = rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'step', step = step_id, key = idempotency,
  queue = queue_name, deployment = deployment_id, body = body,
})
if not has_message(base, run_id, state, step_id) then
  -- A message of another kind holds its key, and stands for no step.
  return look_again()
end
forgive_step(base, at, run_id, step_id, read_step(base, run_id, step_id))
return reply
