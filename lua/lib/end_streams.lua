-- @include lib/keys

local STREAMS_AT_ONCE = 100

-- Deletes what is in a stream and wakes its readers, who find their end so. Its name stays.
local function end_stream(base, run_id, name)
  local stream = stream_key(base, run_id, name)
  redis.call('UNLINK', stream, writers_key(base, run_id, name))
  redis.pcall('PUBLISH', stream, '')
end

-- Ends the streams of a run, a bounded number at a time from behind the name `after`. Returns the
-- name to go on behind, or nil when all are empty.
local function end_streams(base, run_id, after)
  local from = after == '' and '-' or '(' .. after
  local names = redis.call('ZRANGE', streams_key(base, run_id), from, '+', 'BYLEX', 'LIMIT', 0,
    STREAMS_AT_ONCE)
  for _, name in ipairs(names) do
    end_stream(base, run_id, name)
  end
  if #names == STREAMS_AT_ONCE then
    return names[#names]
  end
end
