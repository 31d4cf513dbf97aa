-- Counts the messages of a topic.
--
-- KEYS: due, leased, held, dead
-- ARGV:
-- Returns: OK now ready delayed leased held dead oldest_due, empty when nothing is due
--
-- @unwaited
-- @include lib/clock

local at = now()
local ready = redis.call('ZCOUNT', due, '-inf', at)
local oldest = redis.call('ZRANGE', due, '-inf', at, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
local oldest_held = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
if oldest_held and (not oldest or tonumber(oldest_held) < tonumber(oldest)) then
  oldest = oldest_held
end
return { 'OK', at, tostring(ready), tostring(redis.call('ZCARD', due) - ready),
  tostring(redis.call('ZCARD', leased)), tostring(redis.call('ZCARD', held)),
  tostring(redis.call('ZCARD', dead)), oldest or '' }
