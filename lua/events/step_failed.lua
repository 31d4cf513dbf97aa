-- Ends a step with its error (contract, section 5).
--
-- KEYS: run, events, payloads, step
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, payload, resolve_data
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--   | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/step

local status, run_refusal = open_run(run)
if not status then
  return run_refusal
end
local _, refusal = open_step(run, step)
if refusal then
  return refusal
end

local at = now()
return change_step({ base = base, events = events, payloads = payloads, step = step }, {
  type = 'step_failed', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, { 'status', 'failed', 'completed_at', at }, 'error_slot', resolve_data, outbox)
