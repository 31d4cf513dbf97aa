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
  base = base, run = run, events = events, payloads = payloads, steps = steps, step = step,
}
local created = creates ~= '' and redis.call('ZSCORE', steps, correlation_id)
local written, own
if creates == '' then
  written, own = remembered(ops, events, op)
elseif created then
  own = own_entry(events, created, op)
  written = string.format('%.0f', created + 1)
end
if own then
  return step_reply(keys, written, own.at, sent_along(base, outbox), resolve_data)
end

local status, refusal = open_run(run)
if not status then
  return refusal
elseif is_terminal(status) then
  -- No work begins on a finished run, before anything else is looked at.
  return { creates ~= '' and 'RUN_TERMINAL' or 'RUN_EXPIRED', status }
end

local at = now()
if creates ~= '' then
  if created then
    return { 'CONFLICT' }
  elseif is_full(events, max_events) then
    return { 'LOG_FULL' }
  end
  create_step(keys, {
    at = at, spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
    data = created_data, payload = payload,
  }, correlation_id, step_name)
else
  local _, step_refusal = open_step(run, step)
  if step_refusal then
    return step_refusal
  end
  local retry_after = redis.call('HGET', step, 'retry_after')
  if retry_after and tonumber(retry_after) > tonumber(at) then
    return { 'TOO_EARLY', string.format('%.0f', tonumber(retry_after) - tonumber(at)) }
  end
end

redis.call('HDEL', step, 'retry_after')
redis.call('HSETNX', step, 'started_at', at)
redis.call('HINCRBY', step, 'attempt', '1')
local slot = change_step(keys, {
  type = 'step_started', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = creates == '' and payload or '',
}, { 'status', 'running' })
if creates == '' then
  remember(ops, op, slot)
end
return step_reply(keys, slot, at, send_along(base, at, outbox), resolve_data)
