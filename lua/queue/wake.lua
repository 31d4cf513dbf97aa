-- Hands on what has woken a worker that has no room: another one is woken, if there is something
-- for it.
--
-- KEYS: due, declined
-- ARGV: base, topic, worker
-- Returns: OK
--
-- @unwaited
-- @include lib/clock
-- @include lib/sleepers

local at = now()
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
if first and (tonumber(first) <= tonumber(at) or redis.call('ZCARD', declined) > 0) then
  hint(base, topic, at, worker)
end
return { 'OK' }
