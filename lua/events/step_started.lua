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

-- The slot and the entry that this request itself has written, and the step as it was then.
local function written_before()
  if is_lazy then
    local created = step and slot_of(step.slot)
    local own = own_entry(events, created, op)
    return own and later(created, 1), own, '1', ''
  elseif step and step.attempt ~= '0' then
    local own = step.first ~= '' and own_entry(events, step.first, op)
    if own then
      return step.first, own, '1', ''
    end
    return remembered_attempt(ops, events, op)
  end
end

local function refuse_lazy_start()
  return is_terminal(state.status) and { 'RUN_TERMINAL', state.status }
    or step and { 'CONFLICT' }
    or is_full(state, max_events) and { 'LOG_FULL' }
end

-- On a finished run no work begins, before anything else is looked at.
local function refuse_start()
  local wait = step and step.retry_after ~= '' and tonumber(step.retry_after) - tonumber(at) or 0
  return is_terminal(state.status) and { 'RUN_EXPIRED', state.status }
    or not step and { 'STEP_NOT_FOUND' }
    or is_terminal(step.status) and { 'STEP_TERMINAL', step.status }
    or wait > 0 and { 'TOO_EARLY', string.format('%.0f', wait) }
end

-- Refuse, unless this request itself has started the attempt.
local written, own, attempt, error_slot = written_before()
if own then
  show_as_it_was(step, 'running', own.at, attempt, error_slot)
  return step_reply(events, state, step, written, own.at, sent_along(base, outbox), resolve_data)
end
local refusal = refuse_run(state) or (is_lazy and refuse_lazy_start or refuse_start)()
if refusal then
  return refusal
end

-- Append.
if is_lazy then
  local created = append(events, payloads, {
    type = 'step_created', at = at, spec = spec_version, op = op, corr = correlation_id,
    occ = occurred_at, data = created_data, payload = payload,
  })
  step = new_step(at, created, payload, spec_version, step_name)
end
local slot = append(events, payloads, {
  type = 'step_started', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = is_lazy and '' or payload,
})

-- Change the step. Its first start finds itself by its slot, a later one by its request.
local is_first = step.attempt == '0' and step.error_slot == ''
begin_attempt(step, at)
if is_lazy then
  store_new_step(base, at, run, run_id, state, slot, count + 1, correlation_id, step)
else
  if is_first then
    step.first = slot
  else
    remember_attempt(ops, op, slot, step)
  end
  store_step(base, at, run, run_id, state, slot, correlation_id, step)
end
return step_reply(events, state, step, slot, at, send_along(base, at, outbox), resolve_data)
