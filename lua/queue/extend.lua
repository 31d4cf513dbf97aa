-- Extends a lease to `lease` ms from now (contract, section 7).
--
-- KEYS: leased, message
-- ARGV: message_id, receipt, lease
-- Returns: OK | LEASE_LOST
--
-- @unwaited
-- @include lib/clock
-- @include lib/later

-- ZREM first: a full server refuses a growing command as a script's first write only, and a
-- lease that can't be extended is a message handed out again.
if redis.call('HGET', message, 'receipt') ~= receipt
  or redis.call('ZREM', leased, message_id) == 0 then
  return { 'LEASE_LOST' }
end
redis.call('ZADD', leased, later(now(), lease), message_id)
return { 'OK' }
