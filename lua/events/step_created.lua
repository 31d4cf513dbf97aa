-- Creates a step, pending, not yet attempted (contract, section 5).
--
-- KEYS: run, events, payloads, steps, step
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   step_name, resolve_data, max_events
-- Returns: OK slot at message step | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/debt
-- @include lib/outbox
-- @include lib/request
-- @include lib/step

local status, refusal = open_run(run)
if not status then
  return refusal
end
local created = redis.call('ZSCORE', steps, correlation_id)
local own = own_entry(events, created, op)
if own then
  return { 'OK', created, own.at, sent_along(base, outbox),
    entity_row(step, payloads, resolve_data, created) }
elseif is_terminal(status) then
  return { 'RUN_TERMINAL', status }
elseif created then
  return { 'CONFLICT' }
elseif is_full(events, max_events) then
  return { 'LOG_FULL' }
end

local at = now()
local slot = create_step({ events = events, payloads = payloads, steps = steps, step = step }, {
  at = at, spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
  data = data, payload = payload,
}, correlation_id, step_name)
local sent = send_along(base, at, outbox)
owe_step(base, at, run_id, correlation_id)
return { 'OK', slot, at, sent, entity_row(step, payloads, resolve_data, slot) }
