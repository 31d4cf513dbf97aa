-- @include lib/cleaning
-- @include lib/end_hooks
-- @include lib/end_streams
-- @include lib/queue

-- Removes a run with all that belongs to it. What makes it a run goes at once, so that nobody finds
-- it any more; its hooks, streams and messages may be many, and follow piece by piece.

local PARTS_AT_ONCE = 100

local function begin_removal(base, at, run_id)
  local run = run_key(base, run_id)
  local fields = redis.call('HMGET', run, 'status', 'workflow_name')
  redis.call('ZREM', finished_key(base), run_id)
  redis.call('ZREM', runs_key(base), run_id)
  redis.call('ZREM', status_key(base, fields[1]), run_id)
  redis.call('ZREM', workflow_key(base, fields[2], fields[1]), run_id)
  is_clean(base, 'hooks', run_id)
  is_clean(base, 'log', run_id)
  is_clean(base, 'keep', run_id)
  is_clean(base, 'streams', run_id)
  is_clean(base, 'messages', run_id)
  clean_later(base, at, 'run', run_id)
  local book = open_book(base, '', run_id, '')
  if get(book, 'n') then
    put(book, 'bare', '1')
    store_books()
  end
  redis.call('UNLINK', run, attributes_key(base, run_id), events_key(base, run_id),
    stripped_key(base, run_id), payloads_key(base, run_id), claims_key(base, run_id),
    ops_key(base, run_id), contents_key(base, run_id))
  redis.pcall('PUBLISH', done_channel(base, run_id), '')
end

local function remove_streams(base, run_id, limit)
  local streams = streams_key(base, run_id)
  local names = redis.call('ZRANGE', streams, 0, limit - 1)
  for _, name in ipairs(names) do
    end_stream(base, run_id, name)
    redis.call('ZREM', streams, name)
  end
  return #names
end

-- Takes a message of the run out of all sets; its record goes with the others of a piece.
local function remove_message(base, book, message_id, envelope)
  local message = unpack_envelope(envelope)
  if message then
    local topic = message.topic
    local held = redis.call('ZREM', held_key(base, book.run), topic .. '/' .. message_id)
    local is_dead = take_out(base, topic, member_of(message_id, book.run))
    add(book, 'held', -held)
    add(book, is_dead and 'dead' or 'n', -1)
    message.id = message_id
    settle(base, book, message)
  end
  for _, field in ipairs({ 'message:', 'state:', 'error:', 'declined:' }) do
    drop(book, field .. message_id)
  end
end

-- Removes some messages; how many. It begins at the start each time, so that it finds those, too,
-- that were sent since: none is left where it has come to the end of all of them.
local function remove_messages(base, run_id, limit)
  local removed, cursor = 0, '0'
  local book = open_book(base, '', run_id, '')
  repeat
    local found
    found, cursor = scan_messages(base, run_id, cursor, limit)
    for _, each in ipairs(found) do
      if removed < limit then
        remove_message(base, book, each.id, each.envelope)
        removed = removed + 1
      end
    end
  until cursor == '0' or removed == limit
  store_books()
  return removed
end

-- Removes some of a run's parts; whether none is left.
local function remove_parts(base, run_id)
  local left = PARTS_AT_ONCE
  local hooks = redis.call('ZRANGE', hooks_key(base, run_id), 0, left - 1)
  for _, hook_id in ipairs(hooks) do
    remove_hook(base, run_id, hook_id)
  end
  left = left - #hooks
  for _, remove in ipairs({ remove_streams, remove_messages }) do
    if left > 0 then
      left = left - remove(base, run_id, left)
    end
  end
  if left == 0 then
    return false
  end
  redis.call('DEL', run_queue_key(base, run_id), held_key(base, run_id))
  redis.call('ZREM', lost_key(base), run_id)
  is_clean(base, 'run', run_id)
  return true
end
