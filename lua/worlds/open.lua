-- Opens a namespace: pins the schema and the number of partitions at the first time, and
-- answers with what is pinned ever after.
--
-- KEYS: meta
-- ARGV: schema, partitions, writer
-- Returns: OK schema partitions | CREATED schema partitions
--
-- @include lib/clock

local pinned = redis.call('HMGET', meta, 'schema', 'partitions')
if not pinned[1] then
  redis.call('HSET', meta, 'schema', schema, 'partitions', partitions, 'created_by', writer,
    'created_at', now())
  return { 'CREATED', schema, partitions }
end
return { 'OK', pinned[1], pinned[2] }
