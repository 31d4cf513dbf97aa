-- Tells how many messages of a topic a claim would find here, and when the next one comes.
--
-- KEYS: due, leased
-- ARGV: limit
-- Returns: OK count now next, empty when nothing is to come
--
-- @unwaited
-- @include lib/clock

local at = now()
local count = redis.call('ZCOUNT', due, '-inf', at)
if count < tonumber(limit) then
  count = count + redis.call('ZCOUNT', leased, '-inf', at)
end
local upcoming = ''
for _, set in ipairs({ due, leased }) do
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if first and (upcoming == '' or tonumber(first) < tonumber(upcoming)) then
    upcoming = first
  end
end
return { 'OK', tostring(count), at, upcoming }
