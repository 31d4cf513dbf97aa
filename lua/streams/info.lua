-- Tells how far a stream has been written, and whether it is closed.
--
-- KEYS: run, stream, writers
-- ARGV:
-- Returns: OK tail_index done, `1` or empty
--
-- @unwaited
-- @include lib/stream

local length, closed = extent(run, stream, writers)
return { 'OK', string.format('%.0f', length - 1), closed and '1' or '' }
