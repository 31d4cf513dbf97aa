-- Hands on what has woken a worker, or was to, when it has no room or stops: it sleeps no longer,
-- and another one is told of what is there for it.
--
-- KEYS: due, leased, declined
-- ARGV: base, topic, worker
-- Returns: OK
--
-- @unwaited
-- @include lib/clock
-- @include lib/sleepers

local at = now()
local upcoming = next_time(due, leased)
if redis.call('ZCARD', declined) > 0 then
  -- Somebody may have it before its time.
  upcoming = at
end
leave(base, topic, at, worker, upcoming)
return { 'OK' }
