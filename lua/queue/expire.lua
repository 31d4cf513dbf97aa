-- Frees the leases of workers that are gone, a bounded number at a time. And looks at a few dead
-- letters: nobody else comes by one whose record is gone, and its run would wait for an operator.
--
-- KEYS: leased
-- ARGV: base, topic, max_lost
-- Returns: OK count dropped, the members whose record was gone
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
for _, member in ipairs(redis.call('ZRANDMEMBER', topic_key(base, topic, 'dead'), LETTERS)) do
  local message_id, run_id = split_member(member)
  if not is_stored(open_book(base, topic, run_id, message_id), message_id) then
    lose(base, topic, member)
    dropped[#dropped + 1] = member
  end
end
return { 'OK', tostring(expired), dropped }
