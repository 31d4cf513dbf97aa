-- Sends a step back to pending after a failed attempt (contract, section 5).
--
-- `retry_after` is the time in ms before which it must not start again, or empty.
--
-- KEYS: run, events, payloads, ops, step
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, payload,
--   resolve_data, retry_after
-- Returns: OK slot at message step | STEP_NOT_FOUND | STEP_TERMINAL status | RUN_EXPIRED status
--
-- @include lib/clock
-- @include lib/step

return retry_step({
  base = base, run = run, events = events, payloads = payloads, ops = ops, step = step,
}, {
  type = 'step_retrying', at = now(), spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, { outbox = outbox, resolve_data = resolve_data, retry_after = retry_after })
