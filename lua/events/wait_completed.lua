-- Completes a wait (contract, section 5).
--
-- KEYS: run, events, payloads, ops, wait_states
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data
-- Returns: OK slot at message wait | CONFLICT | WAIT_NOT_FOUND | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version
--
-- @include lib/clock
-- @include lib/wait

-- Look.
local at = now()
local state = look_at(run)

-- Refuse, unless this request itself has completed the wait that refuses it. A finished run has no
-- waits left, so that it needs no check of its own.
local refusal = refuse_run(state)
if refusal then
  return refusal
end
local again = wait_answered_before(base, events, ops, op, outbox)
if again then
  return again
end
local stored = redis.call('HGET', wait_states, correlation_id)
if not stored then
  return { 'WAIT_NOT_FOUND' }
end
local wait = unpack_wait(stored)
if wait.status == 'completed' then
  return { 'CONFLICT' }
end

-- Append.
local slot = append(events, payloads, 'wait_completed', at, spec_version, op, correlation_id,
  occurred_at, data, '')

-- Change the wait.
wait.status, wait.completed_at, wait.updated_at = 'completed', at, at
local changed = pack_wait(wait)
redis.call('HSET', wait_states, correlation_id, changed)
remember(ops, op, slot .. ' ' .. changed)
store_run(base, at, run, run_id, state, slot)
local sent = send_along(base, at, outbox)
return { 'OK', slot, at, sent, changed }
