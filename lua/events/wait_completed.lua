-- Completes a wait (contract, section 5).
--
-- KEYS: run, events, payloads, ops, wait_states
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data
-- Returns: OK slot at message state | CONFLICT | WAIT_NOT_FOUND | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/wait

return complete_wait({
  base = base, run = run, events = events, payloads = payloads, ops = ops,
  wait_states = wait_states,
}, {
  type = 'wait_completed', at = now(), spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
}, { outbox = outbox })
