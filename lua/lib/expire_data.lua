-- @include lib/cleaning
-- @include lib/end_streams
-- @include lib/keys
-- @include lib/log
-- @include lib/queue

-- Zero retention (contract, section 5): a run whose attribute `$retention` is `0` when it ends
-- keeps its records, and none of its user data. `expired_at` tells whoever writes or reads later
-- that there is none, in the log, streams and messages, however long it takes to delete it.

local STRIPPED_AT_ONCE = 100
local EVENTS_AT_ONCE = 100

-- Deletes the payloads in a run's log: copies some entries without theirs behind those that were
-- copied before, and puts the copy in place of the log when it has all. Returns what a caller goes
-- on with, nil at the end.
local function strip_log(base, run_id)
  local log, copy = events_key(base, run_id), stripped_key(base, run_id)
  local entries = redis.call('XRANGE', log, '0-' .. redis.call('XLEN', copy) + 1, '+',
    'COUNT', EVENTS_AT_ONCE)
  for _, entry in ipairs(entries) do
    redis.call('XADD', copy, entry[1], unpack(without_payload(entry[2])))
  end
  if #entries == EVENTS_AT_ONCE then
    return '1'
  end
  -- A log may be large: it is not freed while anybody waits.
  redis.call('UNLINK', log)
  redis.call('RENAME', copy, log)
end

local function expire_data(base, at, run, payloads, run_id)
  redis.call('HSET', run, 'expired_at', at)
  redis.call('HDEL', run, 'input_slot')
  redis.call('UNLINK', payloads)
  if strip_log(base, run_id) then
    clean_later(base, at, 'log', run_id)
  end
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
