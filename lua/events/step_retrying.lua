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
  show_as_it_was(step, 'pending', own.at, attempt, error_slot)
  step.retry_after = retry_after
  return step_reply(events, state, step, written, own.at, sent_along(base, outbox), resolve_data)
end
local refusal = refuse_outcome(state, step)
if refusal then
  return refusal
end

-- Append. When the user data of its run is deleted the payload is dropped.
local keeps = not state.expired_at
local slot = append(events, payloads, {
  type = 'step_retrying', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = keeps and payload or '',
})

-- Change the step.
step.status, step.retry_after, step.updated_at = 'pending', retry_after, at
step.error_slot = (keeps and '' or '-') .. slot
remember_attempt(ops, op, slot, step, is_terminal(state.status))
store_step(base, at, run, run_id, state, slot, correlation_id, step)
return step_reply(events, state, step, slot, at, send_along(base, at, outbox), resolve_data)
