-- Lists what the sweeper has to see to of tokens across partitions: reservations of at least
-- `grace` ms ago, whose creators had their time, and tokens whose hook here is gone.
--
-- KEYS: reservations, releases
-- ARGV: base, grace, limit
-- Returns: OK reservations releases, a reservation being token hash, run, hook, number, all empty
--   but the first where there is no record
--
-- @unwaited
-- @include lib/clock
-- @include lib/keys
-- @include lib/later

local found = {}
local old = redis.call('ZRANGE', reservations, '-inf', later(now(), -grace), 'BYSCORE', 'LIMIT', 0,
  limit)
for i, token_hash in ipairs(old) do
  local record = redis.call('HMGET', token_key(base, token_hash), 'run', 'hook', 'r')
  found[i] = { token_hash, record[1] or '', record[2] or '', record[3] or '' }
end
return { 'OK', found, redis.call('ZRANGE', releases, 0, limit - 1) }
