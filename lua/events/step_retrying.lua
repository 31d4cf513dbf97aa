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

local keys = { base = base, run = run, events = events, payloads = payloads, step = step }
local written, own = remembered(ops, events, op)
if own then
  return step_reply(keys, written, own.at, sent_along(base, outbox), resolve_data)
end
local _, refusal, run_status = open_step(run, step)
if refusal then
  return refusal
end

local changes = { 'status', 'pending' }
if retry_after == '' then
  redis.call('HDEL', step, 'retry_after')
else
  changes[3], changes[4] = 'retry_after', retry_after
end
local at = now()
local slot = change_step(keys, {
  type = 'step_retrying', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
}, changes, 'error_slot', run_status)
remember(ops, op, slot, is_terminal(run_status))
return step_reply(keys, slot, at, send_along(base, at, outbox), resolve_data)
