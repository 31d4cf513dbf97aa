-- Frees the leases of workers that are gone, a bounded number at a time.
--
-- KEYS: leased
-- ARGV: base, topic, max_lost
-- Returns: OK count dropped, the ids whose record was gone
--
-- @unwaited
-- @include lib/clock
-- @include lib/lease

local dropped = {}
local expired = expire_leases(base, topic, now(), max_lost, dropped)
return { 'OK', tostring(expired), dropped }
