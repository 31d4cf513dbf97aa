-- Appends chunks to a stream, in order, and wakes its readers (contract, section 8).
--
-- KEYS: run, streams, stream, writers
-- ARGV: name, writer, sequence, op, chunks...
-- Returns: OK index of the last chunk | CLOSED | STALE when the writer has written since, by a
--   copy of its process
--
-- @include lib/stream

local index, is_stale = repeated_write(writers, writer, sequence, op)
if is_stale then
  return { 'STALE' }
end
if index then
  return { 'OK', index }
end
local length, closed = extent(run, stream, writers)
if closed then
  return { 'CLOSED' }
end
for _, chunk in ipairs(chunks) do
  redis.call('XADD', stream, '0-*', 'chunk', chunk)
end
index = string.format('%.0f', length + #chunks - 1)
redis.call('HSET', writers, writer, sequence .. ' ' .. index .. ' ' .. op)
redis.call('ZADD', streams, 'NX', '0', name)
keep_or_expire(run, streams, stream, writers)
redis.pcall('PUBLISH', stream, '')
return { 'OK', index }
