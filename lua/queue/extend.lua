-- Extends a lease to `lease` ms from now (contract, section 7).
--
-- KEYS: leased
-- ARGV: base, topic, run_id, message_id, receipt, lease
-- Returns: OK | LEASE_LOST
--
-- @unwaited
-- @include lib/book
-- @include lib/clock
-- @include lib/later

local message = read_message(open_message(base, topic, run_id, message_id), message_id)
local member = member_of(message_id, run_id)
-- ZREM first: a full server refuses a growing command as a script's first write only, and a
-- lease that can't be extended is a message handed out again.
if not message or message.receipt ~= receipt or redis.call('ZREM', leased, member) == 0 then
  return { 'LEASE_LOST' }
end
redis.call('ZADD', leased, later(now(), lease), member)
return { 'OK' }
