-- Tells how many messages of a topic a claim of this worker would find here, and when the next one
-- comes. `spot` is that of the claim.
--
-- KEYS: due, leased
-- ARGV: base, topic, limit, worker, spot
-- Returns: OK count now next, empty when nothing is to come
--
-- @unwaited
-- @include lib/clock
-- @include lib/declined

local at = now()
local count = redis.call('ZCOUNT', due, '-inf', at)
if count < tonumber(limit) then
  count = count + redis.call('ZCOUNT', leased, '-inf', at)
end
if count < tonumber(limit) then
  count = count + #offers(base, topic, worker, spot)
end
local upcoming = ''
for _, set in ipairs({ due, leased }) do
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if first and (upcoming == '' or tonumber(first) < tonumber(upcoming)) then
    upcoming = first
  end
end
return { 'OK', tostring(count), at, upcoming }
