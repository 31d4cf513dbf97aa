-- Sends a message, or names the outstanding one that stands for it (contract, section 7).
--
-- KEYS: due
-- ARGV: base, topic, message_id, run_id, kind, step_id, idempotency, queue_name, deployment_id,
--   headers, body, delay
-- Returns: OK message_id due_at | DONE when the step is terminal and nothing was stored
--
-- @include lib/clock
-- @include lib/later
-- @include lib/queue

local at = now()
local due_at = later(at, delay)
local sent = push(base, topic, at, {
  id = message_id, run = run_id, kind = kind, step = step_id, key = idempotency,
  queue = queue_name, deployment = deployment_id, headers = headers, body = body,
  due_at = due_at,
})
store_books()
if not sent then
  return { 'DONE' }
end
return { 'OK', sent, due_at }
