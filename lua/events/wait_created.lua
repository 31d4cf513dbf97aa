-- Creates a wait (contract, section 5). Who wakes the run at `resume_at` is the queue's matter.
--
-- KEYS: run, events, payloads, ops, waits, wait_states
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, resume_at,
--   max_events
-- Returns: OK slot at message wait | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/wait

-- Look.
local at = now()
local state = look_at(run)

-- Refuse, unless this request itself has created the wait that refuses it.
local refusal = refuse_run(state)
if refusal then
  return refusal
end
local again = wait_answered_before(base, events, ops, op, outbox)
if again then
  return again
end
refusal = is_terminal(state.status) and { 'RUN_TERMINAL', state.status }
  or redis.call('HEXISTS', wait_states, correlation_id) == 1 and { 'CONFLICT' }
  or is_full(state, max_events) and { 'LOG_FULL' }
if refusal then
  return refusal
end

-- Append.
local slot = append(events, payloads, 'wait_created', at, spec_version, op, correlation_id,
  occurred_at, data, '')

-- Create.
local wait = pack_wait({
  status = 'waiting', created_at = at, updated_at = at, resume_at = resume_at,
  spec_version = spec_version,
})
redis.call('HSET', wait_states, correlation_id, wait)
redis.call('ZADD', waits, slot, correlation_id)
remember(ops, op, slot .. ' ' .. wait)
store_run(base, at, run, run_id, state, slot)
local sent = send_along(base, at, outbox)
return { 'OK', slot, at, sent, wait }
