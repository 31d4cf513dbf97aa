-- Records what was sent to a live hook (contract, section 5, and Resume dedupe).
--
-- The resume id is looked at before the run's and the hook's state: the first answer stands,
-- also after the hook was disposed, or a redelivered resume would be taken for a lost one.
--
-- KEYS: run, events, payloads, claims, ops
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   resume_id, payload_digest, resolve_data, max_events
-- Returns: OK slot at message | REPEATED slot at message entry payloads, which are one or none |
--   RESUME_CONFLICT hook-or-payload | HOOK_NOT_FOUND | RUN_EXPIRED status | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version | LOG_FULL
--
-- @include lib/clock
-- @include lib/debt
-- @include lib/hook
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run

-- Look.
local at = now()
local state = look_at(run)

-- Refuse, unless this request itself, or one with its resume id, was recorded before.
local refusal = refuse_run(state)
if refusal then
  return refusal
end

local claim = 'resume:' .. resume_id
if resume_id ~= '' then
  local first = redis.call('HGET', claims, claim)
  if first then
    local entry, raw = read_entry(events, first)
    if entry.corr ~= correlation_id then
      return { 'RESUME_CONFLICT', 'hook' }
    elseif payload_digest ~= '' and entry.digest and entry.digest ~= payload_digest then
      return { 'RESUME_CONFLICT', 'payload' }
    end
    local sent = entry.op == op and sent_along(base, outbox) or send_along(base, at, outbox)
    local shows = resolve_data == 'all' and not state.expired_at
    return { 'REPEATED', first, entry.at, sent, without_payload(raw),
      shows and { first, entry.payload } or {} }
  end
else
  local written, own = remembered(ops, events, op)
  if own then
    return { 'OK', written, own.at, sent_along(base, outbox) }
  end
end
local is_readable, is_resumable = judge_hook(base, run_id, correlation_id, state.status, at)
if not is_readable then
  return { 'HOOK_NOT_FOUND' }
elseif not is_resumable then
  return { 'RUN_EXPIRED', state.status }
elseif is_full(state, max_events) then
  return { 'LOG_FULL' }
end

-- Append.
local more = {}
if resume_id ~= '' then
  more[1], more[2] = 'resume', resume_id
end
if payload_digest ~= '' then
  more[#more + 1] = 'digest'
  more[#more + 1] = payload_digest
end
local slot = append(events, payloads, 'hook_received', at, spec_version, op, correlation_id,
  occurred_at, data, payload, unpack(more))
if resume_id ~= '' then
  redis.call('HSET', claims, claim, slot)
else
  remember(ops, op, slot)
end
if outbox == '' then
  note_wake(base, at, run_id, state)
end
store_run(base, at, run, run_id, state, slot)

-- Wake the run.
return { 'OK', slot, at, send_wake_along(base, at, outbox, run_id) }
