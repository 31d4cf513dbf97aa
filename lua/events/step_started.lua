-- Starts an attempt of a step; a lazy start creates the step first (contract, section 5).
--
-- `creates` is `1` for a lazy start: then `created_data` and `payload` belong to the synthetic
-- step_created event before it, and the step must not exist yet in any state.
--
-- KEYS: run, events, payloads, ops
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, resolve_data,
--   max_events, creates, created_data, payload, step_name
-- Returns: OK slot at message step | CONFLICT | TOO_EARLY milliseconds | STEP_NOT_FOUND |
--   STEP_TERMINAL status | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | RUN_EXPIRED status |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/step

-- Look.
local at = now()
local state, step, count = look_at_step(run, correlation_id)
local is_lazy = creates ~= ''

-- Refuse, unless this request itself has started the attempt.
if step and (is_lazy or step.attempt ~= '0') then
  local begun = is_lazy and slot_of(step.slot) or step.first
  local own = begun ~= '-' and own_entry(events, begun, op)
  local written, attempt, error_slot = begun, '1', '-'
  if is_lazy then
    written = string.format('%d', begun + 1)
  elseif not own then
    written, own, attempt, error_slot = remembered_attempt(ops, events, op)
  end
  if own then
    return answer_as_it_was(base, outbox, events, state, step, written, own.at, resolve_data,
      'running', attempt, error_slot, '')
  end
end
local refusal = refuse_run(state)
if refusal then
  return refusal
elseif is_lazy then
  refusal = is_terminal(state.status) and { 'RUN_TERMINAL', state.status }
    or step and { 'CONFLICT' }
    or is_full(state, max_events) and { 'LOG_FULL' }
else
  -- On a finished run no work begins, before anything else is looked at.
  local wait = step and step.retry_after ~= '-' and step.created_at + step.retry_after - at or 0
  refusal = is_terminal(state.status) and { 'RUN_EXPIRED', state.status }
    or not step and { 'STEP_NOT_FOUND' }
    or is_terminal(step.status) and { 'STEP_TERMINAL', step.status }
    or wait > 0 and { 'TOO_EARLY', string.format('%.0f', wait) }
end
if refusal then
  return refusal
end

-- Append.
if is_lazy then
  local created = append(events, payloads, 'step_created', at, spec_version, op, correlation_id,
    occurred_at, created_data, payload)
  step = new_step(at, created, payload, spec_version, step_name)
end
local slot = append(events, payloads, 'step_started', at, spec_version, op, correlation_id,
  occurred_at, data, is_lazy and '' or payload)

-- Change the step. Its first start finds itself by its slot, a later one by its request.
local is_first = step.attempt == '0' and step.error_slot == '-'
step.attempt = string.format('%d', step.attempt + 1)
step.status, step.updated, step.retry_after = 'running', distance_of(step.created_at, at), '-'
if step.started == '-' then
  step.started = step.updated
end
if is_first and not is_lazy then
  step.first = slot
end
local record = record_of(step)
if is_lazy then
  store_new_step(base, at, run, run_id, state, slot, count, correlation_id, step, record)
else
  store_run(base, at, run, run_id, state, slot, 'step:' .. correlation_id, record)
end
if not is_first then
  remember_attempt(ops, op, slot, step)
end
local sent = send_along(base, at, outbox, run_id, correlation_id, step)
return step_reply(events, state, step, record, slot, at, sent, resolve_data)
