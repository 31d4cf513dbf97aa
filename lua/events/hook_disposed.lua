-- Removes a live hook and frees its token in the same instant (contract, section 5).
--
-- KEYS: run, events, payloads, claims
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data
-- Returns: OK slot at message | HOOK_NOT_FOUND | RUN_EXPIRED status | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version
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

-- Refuse, unless this request itself has disposed of the hook that is missing.
local refusal = refuse_run(state)
if refusal then
  return refusal
end
local disposed = redis.call('HGET', claims, 'gone:' .. correlation_id)
local own = own_entry(events, disposed, op)
if own then
  return { 'OK', disposed, own.at, sent_along(base, outbox) }
end
if not judge_hook(base, run_id, correlation_id, state.status, at) then
  return is_terminal(state.status) and { 'RUN_EXPIRED', state.status } or { 'HOOK_NOT_FOUND' }
end

-- Append.
local slot = append(events, payloads, 'hook_disposed', at, spec_version, op, correlation_id,
  occurred_at, data, '')

-- Dispose of the hook.
redis.call('HSET', claims, 'gone:' .. correlation_id, slot)
store_run(base, at, run, run_id, state, slot)
remove_hook(base, run_id, correlation_id)
-- The sweeper left a run with this hook alone for long; it may have nothing to wait for now.
redis.call('ZADD', parked_key(base), 'XX', at, run_id)
return { 'OK', slot, at, (send_along(base, at, outbox)) }
