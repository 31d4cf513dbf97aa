-- @include lib/cleaning
-- @include lib/end_streams
-- @include lib/queue

-- Zero retention (contract, section 5): a run whose attribute `$retention` is `0` when it ends
-- keeps its records, and none of its user data. All payloads lie in one hash, which goes at once;
-- `expired_at` tells whoever writes or reads later that there are none, streams and messages
-- included.

local STRIPPED_AT_ONCE = 100

local function expire_data(base, at, run, payloads, run_id)
  redis.call('HSET', run, 'expired_at', at)
  redis.call('HDEL', run, 'input_slot')
  redis.call('UNLINK', payloads)
  if end_streams(base, run_id, '') then
    clean_later(base, at, 'streams', run_id)
  end
  if redis.call('EXISTS', run_queue_key(base, run_id)) == 1 then
    clean_later(base, at, 'messages', run_id)
  end
end

-- Deletes the content of some messages of such a run, from a cursor on: nobody sees it any more.
-- Returns the next cursor, nil at the end.
local function strip_messages(base, run_id, cursor)
  local found
  found, cursor = scan_messages(base, run_id, cursor == '' and '0' or cursor, STRIPPED_AT_ONCE)
  for _, each in ipairs(found) do
    local message = message_key(base, each.topic, each.id)
    if redis.call('HDEL', message, 'last_error', 'headers', 'body') > 0 then
      redis.call('HSET', message, 'headers', '', 'body', '')
    end
  end
  return cursor ~= '0' and cursor or nil
end
