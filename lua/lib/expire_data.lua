-- @include lib/cleaning
-- @include lib/end_streams

-- Zero retention (contract, section 5): a run whose attribute `$retention` is `0` when it ends
-- keeps its records, and none of its user data. All payloads lie in one hash, which goes at once;
-- `expired_at` tells whoever writes or reads later that there are none, streams included.

local function expires_at_end(attributes)
  return redis.call('HGET', attributes, '$retention') == '0'
end

local function expire_data(base, at, run, payloads, run_id)
  redis.call('HSET', run, 'expired_at', at)
  redis.call('HDEL', run, 'input_slot')
  redis.call('UNLINK', payloads)
  if end_streams(base, run_id, '') then
    clean_later(base, at, 'streams', run_id)
  end
end
