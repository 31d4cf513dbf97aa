-- Ends a step with its error (contract, section 5).
--
-- KEYS: run, events, payloads, step
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--   | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/step

return fail_step({
  base = base, run_id = run_id, run = run, events = events, payloads = payloads, step = step,
}, {
  type = 'step_failed', at = now(), spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, { outbox = outbox, resolve_data = resolve_data })
