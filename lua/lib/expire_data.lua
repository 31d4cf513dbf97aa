-- @include lib/cleaning
-- @include lib/end_streams
-- @include lib/keys
-- @include lib/log
-- @include lib/page
-- @include lib/queue

-- Zero retention (contract, section 5): a run whose attribute `$retention` is `0` when it ends
-- keeps its records, and none of its user data. `expired_at` tells whoever writes or reads later
-- that there is none, in the log, streams and messages, however long it takes to delete it.

local STRIPPED_AT_ONCE = 100
local EVENTS_AT_ONCE, EVENTS_OF_A_LOOK, LOG_BYTES = 100, 10, 256 * 1024

-- Copies entries of a log without their payloads behind those that were copied before: some events,
-- or fewer where they are large. Whether there are more.
local function copy_some(log, copy)
  local next_slot, bytes = redis.call('XLEN', copy) + 1, 0
  local last = next_slot + EVENTS_AT_ONCE
  repeat
    local entries = redis.call('XRANGE', log, '0-' .. next_slot, '+', 'COUNT', EVENTS_OF_A_LOOK)
    for _, entry in ipairs(entries) do
      bytes = bytes + bytes_of(entry[2])
      redis.call('XADD', copy, entry[1], unpack(without_payload(entry[2])))
    end
    next_slot = next_slot + #entries
    if #entries < EVENTS_OF_A_LOOK then
      return false
    end
  until next_slot >= last or bytes >= LOG_BYTES
  return true
end

-- Deletes the payloads in a run's log, a piece at a time: the log without them takes its place.
-- Returns what a caller goes on with, nil at the end.
local function strip_log(base, run_id)
  local log, copy, old = events_key(base, run_id), stripped_key(base, run_id), old_key(base, run_id)
  -- A write that does nothing: a full server refuses a growing command as the first write only.
  redis.call('HDEL', run_key(base, run_id), '')
  if copy_some(log, copy) then
    return '1'
  end
  -- Where renaming is refused, that is before anything is lost; and a log may be large, so that it
  -- is not freed while anybody waits.
  redis.call('RENAME', log, old)
  redis.call('RENAME', copy, log)
  redis.call('UNLINK', old)
end

-- What a run's terminal event leaves to be deleted.
-- @deferred
local function expire_data(...)
  local base, at, run, payloads, run_id = ...
  redis.call('HSET', run, 'expired_at', at)
  redis.call('HDEL', run, 'input_slot')
  redis.call('UNLINK', payloads, contents_key(base, run_id))
  clean_later(base, at, 'log', run_id)
  if end_streams(base, run_id, '') then
    clean_later(base, at, 'streams', run_id)
  end
  local book = open_book(base, '', run_id, '')
  if get(book, 'n') then
    put(book, 'bare', '1')
    store_books()
    clean_later(base, at, 'messages', run_id)
  end
end

-- Deletes the content of some messages of such a run, from a cursor on: nobody sees it any more.
-- Returns the next cursor, nil at the end.
local function strip_messages(base, run_id, cursor)
  local found
  found, cursor = scan_messages(base, run_id, cursor == '' and '0' or cursor, STRIPPED_AT_ONCE)
  local book = open_book(base, '', run_id, '')
  for _, each in ipairs(found) do
    local message = unpack_envelope(each.envelope)
    drop(book, 'error:' .. each.id)
    if message and message.size > 0 then
      put(book, 'message:' .. each.id, bare_envelope(message))
    end
  end
  store_books()
  return cursor ~= '0' and cursor or nil
end
