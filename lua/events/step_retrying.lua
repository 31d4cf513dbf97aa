-- Sends a step back to pending after a failed attempt (contract, section 5).
--
-- `retry_after` is the time in ms before which it must not start again, or empty.
--
-- KEYS: run, events, payloads, ops
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data, retry_after
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--
-- @include lib/clock
-- @include lib/step

-- Look.
local at = now()
local state, step = look_at_step(run, correlation_id)

-- Refuse, unless this request itself has sent the step back.
local written, own, attempt, error_slot = remembered_attempt(ops, events, op)
if own and step then
  return answer_as_it_was(base, outbox, events, state, step, written, own.at, resolve_data,
    'pending', attempt, error_slot, retry_after)
end
local refusal = refuse_outcome(state, step)
if refusal then
  return refusal
end

-- Append. When the user data of its run is deleted the payload is dropped.
local keeps = not state.expired_at
local slot = append(events, payloads, 'step_retrying', at, spec_version, op, correlation_id,
  occurred_at, data, keeps and payload or '')

-- Change the step.
step.status, step.retry_after = 'pending', distance_of(step.created_at, retry_after)
step.updated = distance_of(step.created_at, at)
step.error_slot = keeps and slot or '-' .. slot
remember_attempt(ops, op, slot, step, is_terminal(state.status))
local record = record_of(step)
store_run(base, at, run, run_id, state, slot, 'step:' .. correlation_id, record)
local sent = send_along(base, at, outbox, run_id, correlation_id, step)
return step_reply(events, state, step, record, slot, at, sent, resolve_data)
