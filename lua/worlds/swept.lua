-- Records when the last sweep of all partitions has ended, for operators.
--
-- KEYS: meta
-- ARGV:
-- Returns: OK
--
-- @unwaited
-- @include lib/clock

if redis.call('HEXISTS', meta, 'schema') == 1 then
  redis.call('HSET', meta, 'swept_at', now())
end
return { 'OK' }
