-- Releases a leased message that its worker had no time to finish: due at once, and the
-- attempt does not count (contract, section 7).
--
-- KEYS: leased, message, due
-- ARGV: base, topic, op, message_id, receipt
-- Returns: OK | LEASE_LOST
--
-- @unwaited
-- @include lib/clock
-- @include lib/queue

local ended = end_lease(leased, message, message_id, receipt)
if not ended then
  return changed_by(message, op) and { 'OK' } or { 'LEASE_LOST' }
end
local at = now()
redis.call('HINCRBY', message, 'attempt', '-1')
redis.call('HDEL', message, 'receipt')
redis.call('HSET', message, 'due_at', at, 'last_op', op)
redis.call('ZADD', due, at, message_id)
unhold(base, ended.run, message_id)
hint(base, topic, at)
return { 'OK' }
