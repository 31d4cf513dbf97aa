-- Records what was sent to a live hook (contract, section 5, and Resume dedupe).
--
-- The resume id is looked at before the run's and the hook's state: the first answer stands,
-- also after the hook was disposed, or a redelivered resume would be taken for a lost one.
--
-- KEYS: run, events, payloads, claims, hook
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, payload, resume_id,
--   payload_digest, resolve_data, max_events
-- Returns: OK slot at message | REPEATED slot at message entry payload | RESUME_CONFLICT
--   hook-or-payload | HOOK_NOT_FOUND | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | LOG_FULL
--
-- @include lib/clock
-- @include lib/log
-- @include lib/outbox
-- @include lib/run

local status, refusal = open_run(run)
if not status then
  return refusal
end

local claim = 'resume:' .. resume_id
local first = resume_id ~= '' and redis.call('HGET', claims, claim)
if first then
  local id = '0-' .. first
  local entry = redis.call('XRANGE', events, id, id)[1][2]
  local fields = {}
  for i = 1, #entry, 2 do
    fields[entry[i]] = entry[i + 1]
  end
  if fields.corr ~= correlation_id then
    return { 'RESUME_CONFLICT', 'hook' }
  elseif payload_digest ~= '' and fields.digest and fields.digest ~= payload_digest then
    return { 'RESUME_CONFLICT', 'payload' }
  end
  local stored = resolve_data == 'all' and redis.call('HGET', payloads, first)
  return { 'REPEATED', first, fields.at, send_along(base, now(), outbox), entry, stored }
end
if redis.call('EXISTS', hook) == 0 then
  return { 'HOOK_NOT_FOUND' }
elseif is_full(events, max_events) then
  return { 'LOG_FULL' }
end

local at = now()
local slot = append(events, payloads, {
  type = 'hook_received', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload, resume = resume_id,
  digest = payload_digest,
})
if resume_id ~= '' then
  redis.call('HSET', claims, claim, slot)
end
return { 'OK', slot, at, send_along(base, at, outbox) }
