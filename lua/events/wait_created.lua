-- Creates a wait (contract, section 5). Who wakes the run at `resume_at` is the queue's matter.
--
-- KEYS: run, events, payloads, ops, waits, wait_states
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, resume_at, max_events
-- Returns: OK slot at message state | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/wait

return add_wait({
  base = base, run = run, events = events, payloads = payloads, ops = ops, waits = waits,
  wait_states = wait_states,
}, {
  type = 'wait_created', at = now(), spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
}, { outbox = outbox, max_events = max_events, resume_at = resume_at })
