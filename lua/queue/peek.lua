-- Tells how many messages of a topic a claim of this worker would find here, and when the next one
-- comes. `spot` is that of the claim. With `look` a worker that would find none sleeps, as it does
-- after a claim.
--
-- KEYS: due, leased
-- ARGV: base, topic, limit, worker, spot, look
-- Returns: OK count now next asleep_until, next being empty when nothing is to come, asleep_until
--   when it does not sleep
--
-- @unwaited
-- @include lib/clock
-- @include lib/declined
-- @include lib/sleepers

local at = now()
local count = redis.call('ZCOUNT', due, '-inf', at)
if count < tonumber(limit) then
  count = count + redis.call('ZCOUNT', leased, '-inf', at)
end
if count < tonumber(limit) then
  local declined_count = redis.call('ZCARD', topic_key(base, topic, 'declined'))
  if declined_count > 0 then
    count = count + #offers(base, topic, worker, spot, declined_count)
  end
end
local upcoming = next_time(due, leased)
local asleep_until = ''
if look ~= '' and count == 0 then
  asleep_until = sleep(base, topic, at, worker, look, upcoming)
end
return { 'OK', tostring(count), at, upcoming, asleep_until }
