-- Returns a leased message that its worker had no time to finish: due at once, and the
-- attempt does not count (contract, section 7).
--
-- KEYS: leased, message, due
-- ARGV: base, topic, message_id, receipt
-- Returns: OK | LEASE_LOST
--
-- @include lib/clock
-- @include lib/queue

local held_message = load_message(message)
if not held_message or held_message.receipt ~= receipt
  or redis.call('ZREM', leased, message_id) == 0 then
  return { 'LEASE_LOST' }
end
local at = now()
redis.call('HINCRBY', message, 'attempt', '-1')
redis.call('HDEL', message, 'receipt')
redis.call('HSET', message, 'due_at', at, 'last_receipt', receipt)
redis.call('ZADD', due, at, message_id)
release(base, held_message.run, message_id)
hint(base, topic)
return { 'OK' }
