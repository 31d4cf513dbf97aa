-- Creates a step, pending, not yet attempted (contract, section 5).
--
-- KEYS: run, events, payloads, steps, step
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   step_name, max_events
-- Returns: OK slot at message | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/step

return add_step({
  base = base, run_id = run_id, run = run, events = events, payloads = payloads, steps = steps,
  step = step,
}, {
  at = now(), spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
  data = data, payload = payload,
}, {
  outbox = outbox, max_events = max_events, step_name = step_name,
})
