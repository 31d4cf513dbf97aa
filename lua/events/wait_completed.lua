-- Completes a wait (contract, section 5).
--
-- KEYS: run, events, payloads, ops, wait_states
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data
-- Returns: OK slot at message state | CONFLICT | WAIT_NOT_FOUND | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version
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
end
-- A finished run has no waits left, so that it needs no check of its own.
local stored = redis.call('HGET', wait_states, correlation_id)
if not stored then
  return { 'WAIT_NOT_FOUND' }
end
local wait = unpack_wait(stored)
if wait.status == 'completed' then
  return { 'CONFLICT' }
end

local at = now()
local slot = append(events, payloads, {
  type = 'wait_completed', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
})
wait.status, wait.completed_at, wait.updated_at = 'completed', at, at
local state = pack_wait(wait)
redis.call('HSET', wait_states, correlation_id, state)
-- With its state, which goes with the run.
remember(ops, op, slot .. ' ' .. state)
return { 'OK', slot, at, send_along(base, at, outbox), state }
