-- Removes a live hook and frees its token in the same instant (contract, section 5).
--
-- KEYS: run, events, payloads, claims
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data
-- Returns: OK slot at message | HOOK_NOT_FOUND | RUN_EXPIRED status | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/hook
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run

local status, refusal = open_run(run)
if not status then
  return refusal
end
local disposed = redis.call('HGET', claims, 'gone:' .. correlation_id)
local own = own_entry(events, disposed, op)
if own then
  return { 'OK', disposed, own.at, sent_along(base, outbox) }
end
local at = now()
if not hook_state(base, run_id, correlation_id, at) then
  return is_terminal(status) and { 'RUN_EXPIRED', status } or { 'HOOK_NOT_FOUND' }
end

local slot = append(events, payloads, {
  type = 'hook_disposed', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
})
redis.call('HSET', claims, 'gone:' .. correlation_id, slot)
remove_hook(base, run_id, correlation_id)
-- The sweeper left a run with this hook alone for long; it may have nothing to wait for now.
redis.call('ZADD', parked_key(base), 'XX', at, run_id)
return { 'OK', slot, at, (send_along(base, at, outbox)) }
