-- Ends a step with its error (contract, section 5).
--
-- KEYS: run, events, payloads
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--   | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/step

-- Look.
local at = now()
local state, step = look_at_step(run, correlation_id)

-- Refuse, unless this request itself has brought the end that refuses it. Unlike step_completed it
-- looks at the run first.
local refusal = refuse_run(state) or refuse_outcome(state, step)
if refusal then
  return answer_end_again(base, outbox, events, op, state, step, step and step.error_slot,
    resolve_data) or refusal
end

-- Append. When the user data of its run is deleted the payload is dropped.
local keeps = not state.expired_at
local slot = append(events, payloads, 'step_failed', at, spec_version, op, correlation_id,
  occurred_at, data, keeps and payload or '')

-- Change the step.
step.error_slot = keeps and slot or '-' .. slot
end_step(base, at, run_id, state, step, 'failed', outbox)
local record = record_of(step)
store_run(base, at, run, run_id, state, slot, 'step:' .. correlation_id, record)

-- Wake the run.
local sent = ''
if outbox ~= '' then
  sent = send_outcome_along(base, at, outbox, run_id, state, correlation_id, step)
end
return step_reply(events, state, step, record, slot, at, sent, resolve_data)
