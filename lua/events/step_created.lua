-- Creates a step, pending, not yet attempted (contract, section 5).
--
-- KEYS: run, events, payloads
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   step_name, max_events
-- Returns: OK slot at message | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/step

-- Look.
local at = now()
local state, step, count = look_at_step(run, correlation_id)

-- Refuse, unless this request itself has created the step that refuses it.
if step then
  local written = slot_of(step.slot)
  local own = own_entry(events, written, op)
  if own then
    return { 'OK', written, own.at, sent_along(base, outbox) }
  end
end
local refusal = refuse_run(state)
  or is_terminal(state.status) and { 'RUN_TERMINAL', state.status }
  or step and { 'CONFLICT' }
  or is_full(state, max_events) and { 'LOG_FULL' }
if refusal then
  return refusal
end

-- Append.
local slot = append(events, payloads, 'step_created', at, spec_version, op, correlation_id,
  occurred_at, data, payload)

-- Change: the step is there, and is owed its message where none comes along.
local created = new_step(at, slot, payload, spec_version, step_name)
if outbox == '' then
  note_step(base, run_id, state, correlation_id, created)
end
store_new_step(base, at, run, run_id, state, slot, count, correlation_id, created,
  record_of(created))

-- Send.
local sent = ''
if outbox ~= '' then
  sent = send_message_along(base, at, outbox, run_id, correlation_id, created)
end
return { 'OK', slot, at, sent }
