-- Frees the leases of workers that are gone, a bounded number at a time.
--
-- KEYS: leased
-- ARGV: base, topic, max_lost
-- Returns: OK count
--
-- @unwaited
-- @include lib/clock
-- @include lib/lease

local expired = expire_leases(base, topic, now(), max_lost)
return { 'OK', tostring(expired) }
