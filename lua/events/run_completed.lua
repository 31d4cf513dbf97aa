-- Ends a run well, with its output (contract, section 5).
--
-- KEYS: run, attributes, events, payloads, ops, waits, wait_states
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data
-- Returns: OK slot at message run left, `1` where the log has payloads to delete, else empty |
--   RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | RUN_TERMINAL status
--
-- @include lib/clock
-- @include lib/finish_run

return finish_run({
  run = run, attributes = attributes, events = events, payloads = payloads, ops = ops,
  waits = waits, wait_states = wait_states,
}, {
  type = 'run_completed', at = now(), spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, {
  base = base, outbox = outbox, run_id = run_id, status = 'completed', resolve_data = resolve_data,
  slot_field = 'output_slot',
})
