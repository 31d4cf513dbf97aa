-- Closes a stream, creating it if need be; closing it again changes nothing.
--
-- The end marker is an entry of the stream itself, behind the data: no reader can see the end
-- before the last chunk.
--
-- KEYS: run, streams, stream, writers
-- ARGV: name, op
-- Returns: OK index of the last chunk, -1 for none
--
-- @include lib/stream

local length, closed = extent(run, stream, writers)
if not closed then
  redis.call('XADD', stream, '0-*', 'end', op)
  redis.call('HSET', writers, 'end', op)
  redis.call('ZADD', streams, 'NX', '0', name)
  keep_or_expire(run, streams, stream, writers)
  redis.pcall('PUBLISH', stream, '')
end
return { 'OK', string.format('%.0f', length - 1) }
