-- Chunk streams: entries `0-<index + 1>` with the field `chunk`, and one last entry with the
-- field `end`. Beside each a hash of its writers: writer id -> `<sequence> <index> <op>` of its
-- last write, and `end` once the stream is closed, so that no write has to read the last chunk.

-- A stream that is written before its run exists, or whose run never will, goes after an hour;
-- the creation of the run keeps it.
local ORPHAN_SECONDS = 3600

local function keep_or_expire(run, ...)
  if redis.call('EXISTS', run) == 0 then
    for _, key in ipairs({ ... }) do
      redis.call('EXPIRE', key, ORPHAN_SECONDS)
    end
  end
end

-- The index that a repeated request was given the first time, or nil; and whether the writer has
-- written something else since. One writer sends one write at a time, so that this is a repetition
-- that nobody waits for any more, or two processes have one memory, of which each believes that it
-- is the writer: then the later one takes another name.
local function repeated_write(writers, writer, sequence, op)
  local last = redis.call('HGET', writers, writer)
  if last then
    local last_sequence, index, last_op = string.match(last, '^(%d+) (%-?%d+) ?(.*)$')
    if op == last_op then
      return index
    end
    return nil, tonumber(sequence) <= tonumber(last_sequence)
  end
end

-- How many chunks a stream has, and whether it is closed. Where the user data of its run is deleted
-- it is empty and closed, whether or not there ever was one.
local function extent(run, stream, writers)
  if redis.call('HEXISTS', run, 'expired_at') == 1 then
    return 0, true
  end
  local closed = redis.call('HEXISTS', writers, 'end') == 1
  local length = redis.call('XLEN', stream)
  return closed and length - 1 or length, closed
end
