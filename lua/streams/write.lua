-- Appends chunks to a stream, in order, and wakes its readers (contract, section 8).
--
-- KEYS: run, streams, stream, writers
-- ARGV: name, writer, sequence, chunks...
-- Returns: OK index of the last chunk | CLOSED
--
-- @include lib/stream

local index = repeated_write(writers, writer, sequence)
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
redis.call('HSET', writers, writer, sequence .. ' ' .. index)
redis.call('ZADD', streams, 'NX', '0', name)
keep_or_expire(run, streams, stream, writers)
redis.pcall('PUBLISH', stream, '')
return { 'OK', index }
