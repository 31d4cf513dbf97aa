-- Elects a worker as the one that sweeps, for a term, unless the term of another one is running.
--
-- A term that ends later than a whole one from now was given before the clock was set back.
--
-- KEYS: meta
-- ARGV: worker, term
-- Returns: OK left, in ms until the term of another worker ends; 0: this one is elected
--
-- @unwaited
-- @include lib/clock
-- @include lib/later

local record = redis.call('HMGET', meta, 'schema', 'sweeper', 'sweeper_until')
local at = now()
local left = record[3] and tonumber(record[3]) - tonumber(at) or 0
if record[2] ~= worker and left > 0 and left <= tonumber(term) then
  return { 'OK', string.format('%.0f', left) }
end
-- A namespace that the server has lost is not for an election to make.
if record[1] then
  redis.call('HSET', meta, 'sweeper', worker, 'sweeper_until', later(at, term))
end
return { 'OK', '0' }
