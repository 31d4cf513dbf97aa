-- Starts an attempt of a step; a lazy start creates the step first (contract, section 5).
--
-- `creates` is `1` for a lazy start: then `created_data` and `payload` belong to the synthetic
-- step_created event in front, and the step must not exist yet in any state.
--
-- KEYS: run, events, payloads, ops, steps, step
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, resolve_data,
--   max_events, creates, created_data, payload, step_name
-- Returns: OK slot at message step | CONFLICT | TOO_EARLY milliseconds | STEP_NOT_FOUND |
--   STEP_TERMINAL status | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | RUN_EXPIRED status |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/step

local keys = {
  base = base, run = run, events = events, payloads = payloads, ops = ops, steps = steps,
  step = step,
}
local at = now()
local event = {
  type = 'step_started', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = creates == '' and payload or '',
}
if creates == '' then
  return start_step(keys, event, { outbox = outbox, resolve_data = resolve_data })
end

local created = redis.call('ZSCORE', steps, correlation_id)
local own = own_entry(events, created, op)
if own then
  local written, begun = string.format('%.0f', created + 1), read_step(step)
  begun[ATTEMPT], begun[ERROR_SLOT] = '1', false
  return step_reply(keys, begun, written, own.at, sent_along(base, outbox), resolve_data)
end
local status, refusal = open_run(run)
if not status then
  return refusal
elseif is_terminal(status) then
  return { 'RUN_TERMINAL', status }
elseif created then
  return { 'CONFLICT' }
elseif is_full(events, max_events) then
  return { 'LOG_FULL' }
end
create_step(keys, {
  at = at, spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
  data = created_data, payload = payload,
}, correlation_id, step_name)
local begun = read_step(step)
local slot = begin_attempt(keys, event, begun)
return step_reply(keys, begun, slot, at, send_along(base, at, outbox), resolve_data)
