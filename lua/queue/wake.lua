-- Hands on what has woken a worker, or was to, when it has no room or stops: it sleeps no longer,
-- and another one is told of what is there for it.
--
-- KEYS: due, leased
-- ARGV: base, topic, worker
-- Returns: OK
--
-- @unwaited
-- @include lib/clock
-- @include lib/declined
-- @include lib/sleepers

local at = now()
leave(base, topic, at, worker, next_time(due, leased))
hint_declined(base, topic, at)
return { 'OK' }
