-- Frees the leases of workers that are gone, a bounded number at a time. And looks at a few dead
-- letters: nobody else comes by one whose record is gone, and its run would wait for an operator.
--
-- KEYS: leased
-- ARGV: base, topic, max_lost
-- Returns: OK count dropped, the ids whose record was gone
--
-- @unwaited
-- @include lib/clock
-- @include lib/lease

local LETTERS = 10

local dropped = {}
local at = now()
local expired = expire_leases(base, topic, at, max_lost, dropped)
if expired > 0 then
  -- The worker that claims some of them wakes another one for the rest.
  hint(base, topic, at)
end
for _, message_id in ipairs(redis.call('ZRANDMEMBER', topic_key(base, topic, 'dead'), LETTERS)) do
  if not is_stored(base, topic, message_id) then
    lose(base, topic, message_id)
    dropped[#dropped + 1] = message_id
  end
end
return { 'OK', tostring(expired), dropped }
