-- Ends a step well, with its result (contract, section 5).
--
-- KEYS: run, events, payloads
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--
-- @include lib/clock
-- @include lib/step

-- Look.
local at = now()
local state, step = look_at_step(run, correlation_id)

-- Refuse, unless this request itself has brought the end that refuses it.
local refusal = refuse_outcome(state, step)
if refusal then
  local ended = step and slot_of(step.output_slot)
  local own = own_entry(events, ended, op)
  if not own then
    return refusal
  end
  return step_reply(events, state, step, ended, own.at, sent_along(base, outbox), resolve_data)
end

-- Append. When the user data of its run is deleted the payload is dropped.
local keeps = not state.expired_at
local slot = append(events, payloads, {
  type = 'step_completed', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = keeps and payload or '',
})

-- Change the step.
step.output_slot = (keeps and '' or '-') .. slot
store_end_of_step(base, at, run, run_id, state, slot, correlation_id, step, 'completed', outbox)

-- Wake the run.
local sent = send_outcome_along(base, at, outbox, run_id, state)
return step_reply(events, state, step, slot, at, sent, resolve_data)
