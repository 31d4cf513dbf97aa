-- @include lib/end_streams

-- Keeps the streams of a run that were written before it was there, and were to expire: a bounded
-- number at a time from behind the name `after`. Returns the name to go on behind, or nil when all
-- are kept.
local function keep_streams(base, run_id, after)
  local streams = streams_key(base, run_id)
  local names, following = streams_behind(base, run_id, after, STREAMS_AT_ONCE)
  for _, name in ipairs(names) do
    local stream = stream_key(base, run_id, name)
    if redis.call('EXISTS', stream) == 0 then
      redis.call('ZREM', streams, name)
    end
    redis.call('PERSIST', stream)
    redis.call('PERSIST', writers_key(base, run_id, name))
  end
  redis.call('PERSIST', streams)
  return following
end
