-- Creates a hook and claims its token; one that another hook holds is recorded as a conflict.
--
-- The claim `hook:<id>` is settled either way: after a conflict the same hook can't be created
-- any more, also when the token is free by then, or two rival replays could leave both
-- outcomes in one log.
--
-- KEYS: run, events, payloads, claims, hooks, hook, hook_runs, token, all_hooks
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   token_text, token_hash, is_webhook, is_system, retention_until, resolve_data, max_events
-- Returns: OK slot at message hook context | TOKEN_TAKEN slot at message owner | CONFLICT |
--   RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/hook
-- @include lib/log
-- @include lib/outbox
-- @include lib/rows
-- @include lib/run

local status, refusal = open_run(run)
local claim = 'hook:' .. correlation_id
if not status then
  return refusal
elseif is_terminal(status) then
  return { 'RUN_TERMINAL', status }
elseif redis.call('HEXISTS', claims, claim) == 1 then
  return { 'CONFLICT' }
elseif is_full(events, max_events) then
  return { 'LOG_FULL' }
end

local at = now()
local owner = redis.call('HMGET', token, 'run', 'hook')
if owner[1] and redis.call('EXISTS', hook_key(base, owner[1], owner[2])) == 1 then
  local slot = append(events, payloads, {
    type = 'hook_conflict', at = at, spec = spec_version, op = op, corr = correlation_id,
    occ = occurred_at, token = token_text, owner = owner[1],
  })
  redis.call('HSET', claims, claim, slot)
  return { 'TOKEN_TAKEN', slot, at, send_along(base, at, outbox), owner[1] }
end

local slot = append(events, payloads, {
  type = 'hook_created', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data, payload = payload,
})
redis.call('HSET', claims, claim, slot)
redis.call('HSET', token, 'run', run_id, 'hook', correlation_id, 'at', at)
redis.call('HSET', hook, 'run_id', run_id, 'hook_id', correlation_id, 'token', token_text,
  'token_hash', token_hash, 'created_at', at, 'spec_version', spec_version,
  'is_webhook', is_webhook, 'is_system', is_system)
if retention_until ~= '' then
  redis.call('HSET', hook, 'token_retention_until', retention_until)
end
if payload ~= '' then
  redis.call('HSET', hook, 'metadata_slot', slot)
end
redis.call('ZADD', hooks, slot, correlation_id)
redis.call('ZADD', hook_runs, at, run_id)
redis.call('ZADD', all_hooks, '0', hook_member(at, correlation_id, run_id))
return { 'OK', slot, at, send_along(base, at, outbox),
  entity_row(hook, payloads, resolve_data, slot), resume_context(run) }
