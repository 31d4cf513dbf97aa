-- Frees a leased message after a failed attempt, to be tried again after `delay` ms; at the
-- `max_failures`-th failure it is a dead letter (contract, section 7).
--
-- KEYS: leased, message, due
-- ARGV: base, topic, op, message_id, receipt, delay, last_error, max_failures
-- Returns: OK failures | DEAD failures | LEASE_LOST
--
-- @include lib/bare
-- @include lib/clock
-- @include lib/later
-- @include lib/queue

local ended = end_lease(leased, message, message_id, receipt)
if not ended and changed_by(message, op) then
  local status = redis.call('HEXISTS', message, 'reason') == 1 and 'DEAD' or 'OK'
  return { status, redis.call('HGET', message, 'failures') }
elseif not ended then
  return { 'LEASE_LOST' }
end
local at = now()
local failures = tostring(ended.failures + 1)
redis.call('HSET', message, 'failures', failures, 'last_op', op)
if not is_bare(base, ended.run) then
  redis.call('HSET', message, 'last_error', last_error)
end
if ended.failures + 1 >= tonumber(max_failures) then
  bury(base, topic, at, message_id, ended, 'max_failures')
  return { 'DEAD', failures }
end
local due_at = later(at, delay)
redis.call('HDEL', message, 'receipt')
redis.call('HSET', message, 'due_at', due_at)
redis.call('ZADD', due, due_at, message_id)
unhold(base, ended.run, message_id)
announce(base, topic, at, due_at)
return { 'OK', failures }
