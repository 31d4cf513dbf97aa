-- Returns a leased message that its worker can't handle, or not yet: due again after `delay` ms,
-- and neither the attempt nor anything else counts (contract, section 7). Workers that have not
-- declined it may have it sooner.
--
-- `step_name` is the name of the step that it asks for, empty for none.
--
-- KEYS: leased, message, due, declined
-- ARGV: base, topic, op, message_id, receipt, delay, step_name
-- Returns: OK | LEASE_LOST
--
-- @include lib/clock
-- @include lib/declined
-- @include lib/later
-- @include lib/queue

local ended = end_lease(leased, message, message_id, receipt)
if not ended then
  return changed_by(message, op) and { 'OK' } or { 'LEASE_LOST' }
end
local at = now()
local due_at = later(at, delay)
local worker = worker_of(receipt)
local fields = redis.call('HMGET', message, 'postponed_since', 'declined_by')
local since, before = fields[1] or at, fields[2] or ''
local decliners = with_decliner(before, worker)
-- Who may have it now, and might not before: all others, unless it is as it was.
local is_open = not is_among(worker, before) or are_too_many(before)
redis.call('HINCRBY', message, 'attempt', '-1')
redis.call('HINCRBY', message, 'postponed', '1')
redis.call('HDEL', message, 'receipt')
redis.call('HSET', message, 'due_at', due_at, 'last_op', op, 'postponed_since', since,
  'declined_by', decliners, 'step_name', step_name)
redis.call('ZADD', due, due_at, message_id)
redis.call('ZADD', declined, since, message_id)
unhold(base, ended.run, message_id)
-- One that may have it is to look at once; it knows then when the message is due again. If there is
-- none, any worker has to know, this one too.
if not (is_open and hint_another(base, topic, at, decliners)) then
  announce(base, topic, at, due_at)
end
return { 'OK' }
