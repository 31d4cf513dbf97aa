-- Creates a wait (contract, section 5). Who wakes the run at `resume_at` is the queue's matter.
--
-- KEYS: run, events, payloads, ops, waits, wait_states
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, resume_at, max_events
-- Returns: OK slot at message state | CONFLICT | RUN_NOT_FOUND | RUN_NOT_SUPPORTED version |
--   RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run
-- @include lib/wait

local status, refusal = open_run(run)
if not status then
  return refusal
end
local written, own, noted = remembered(ops, events, op)
if own then
  return { 'OK', written, own.at, sent_along(base, outbox), noted }
elseif is_terminal(status) then
  return { 'RUN_TERMINAL', status }
elseif redis.call('HEXISTS', wait_states, correlation_id) == 1 then
  return { 'CONFLICT' }
elseif is_full(events, max_events) then
  return { 'LOG_FULL' }
end

local at = now()
local slot = append(events, payloads, {
  type = 'wait_created', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
})
local state = pack_wait({
  status = 'waiting', created_at = at, updated_at = at, resume_at = resume_at,
  spec_version = spec_version,
})
redis.call('ZADD', waits, slot, correlation_id)
redis.call('HSET', wait_states, correlation_id, state)
-- With its state, which goes with the run.
remember(ops, op, slot .. ' ' .. state)
return { 'OK', slot, at, send_along(base, at, outbox), state }
