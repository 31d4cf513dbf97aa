-- Extends a lease to `lease` ms from now (contract, section 7).
--
-- KEYS: leased, message
-- ARGV: message_id, receipt, lease
-- Returns: OK | LEASE_LOST
--
-- @include lib/clock

if redis.call('HGET', message, 'receipt') ~= receipt
  or not redis.call('ZSCORE', leased, message_id) then
  return { 'LEASE_LOST' }
end
redis.call('ZADD', leased, string.format('%.0f', tonumber(now()) + tonumber(lease)), message_id)
return { 'OK' }
