-- Ends a step well, with its result (contract, section 5).
--
-- KEYS: run, events, payloads, step
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, payload, resolve_data
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--
-- @include lib/clock
-- @include lib/step

local _, refusal = open_step(run, step)
if refusal then
  return refusal
end

local at = now()
return change_step({ base = base, events = events, payloads = payloads, step = step }, {
  type = 'step_completed', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, { 'status', 'completed', 'completed_at', at }, 'output_slot', resolve_data, outbox)
