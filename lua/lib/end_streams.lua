-- @include lib/keys

local STREAMS_AT_ONCE = 100

-- Deletes what is in a stream and wakes its readers, who find their end so. Its name stays.
local function end_stream(base, run_id, name)
  local stream = stream_key(base, run_id, name)
  redis.call('UNLINK', stream, writers_key(base, run_id, name))
  redis.pcall('PUBLISH', stream, '')
end

-- So many of a run's streams from behind the name `after`, sorted; and the name to go on
-- behind, or nil when these are the last.
local function streams_behind(base, run_id, after, count)
  local from = after == '' and '-' or '(' .. after
  local names = redis.call('ZRANGE', streams_key(base, run_id), from, '+', 'BYLEX', 'LIMIT', 0,
    count)
  return names, #names == count and names[#names] or nil
end

-- Ends the streams of a run, a bounded number at a time from behind the name `after`. Returns the
-- name to go on behind, or nil when all are empty.
local function end_streams(base, run_id, after)
  local names, following = streams_behind(base, run_id, after, STREAMS_AT_ONCE)
  for _, name in ipairs(names) do
    end_stream(base, run_id, name)
  end
  return following
end
