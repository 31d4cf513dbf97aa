-- @include lib/book
-- @include lib/cleaning
-- @include lib/clock
-- @include lib/debt
-- @include lib/keys
-- @include lib/message
-- @include lib/run
-- @include lib/sleepers

-- Messages: what sends, settles and frees them. A message is in exactly one of the sets due,
-- leased, held and dead of its topic, and its record is in the book of its run:
--
--   push            -> due           it is sent; queue/redrive does the same with a dead letter
--   lease_message   due -> leased    a worker claims it (queue/claim)
--   hold            due -> held      a replay, while another one of its run is leased (queue/claim)
--   unhold          held -> due      that one has ended, in whatever way
--   free            leased -> due    after a retry, a release, a postponement or a lost lease
--   bury            leased -> dead   nothing more is tried for it
--   take_delivery   leased -> gone   it was handled; queue/ack does it by itself
--   forget_letter   dead -> gone     it is purged (lib/dead)
--
-- The record may be gone, evicted or deleted by hand, while the message still lies in a set.
-- Whoever meets it takes it out, and goes on; the sweeper sets the book right (queue/mend).

-- Whether a run that is not there was removed just now.
-- @deferred
local function was_removed(...)
  local base, run_id = ...
  return is_removing(base, run_id) and true or false
end

-- Whether nothing of a run's messages is shown but what they are (contract, section 5, run
-- retention): its user data is deleted, or it was removed just now.
local function is_bare(base, run_id)
  if run_id == '' then
    return false
  end
  local state = known_run(base, run_id)
  if state.status then
    return state.expired_at and true or false
  end
  return was_removed(base, run_id)
end

-- The name of the step of a message, empty for none: it is shown in place of its content.
-- @deferred
local function name_of_step(...)
  local base, message = ...
  return message.step ~= ''
    and redis.call('HGET', run_key(base, message.run), name_field(message.step)) or ''
end

-- Takes a message out of all sets of its topic; whether it was a dead letter.
local function take_out(base, topic, member)
  for _, place in ipairs({ 'due', 'declined', 'leased', 'held' }) do
    redis.call('ZREM', topic_key(base, topic, place), member)
  end
  redis.call('HDEL', topic_key(base, topic, 'letters'), (split_member(member)))
  return redis.call('ZREM', topic_key(base, topic, 'dead'), member) == 1
end

-- Takes a message whose record is gone out of its sets; the sweeper is to see to the rest of what
-- its run had.
-- @deferred
local function lose(...)
  local base, topic, member = ...
  local _, run_id = split_member(member)
  take_out(base, topic, member)
  if run_id ~= '' then
    redis.call('ZADD', lost_key(base), 'LT', now(), run_id)
  end
end

-- The same of one that only its book names, whatever its topic was: the next claim meets it.
-- @deferred
local function lose_named(...)
  local base, run_id, message_id = ...
  local at, member = now(), member_of(message_id, run_id)
  for _, topic in ipairs(redis.call('SMEMBERS', topics_key(base))) do
    redis.call('ZADD', topic_key(base, topic, 'due'), 'XX', at, member)
    redis.call('ZADD', topic_key(base, topic, 'leased'), 'XX', at, member)
  end
  redis.call('ZADD', lost_key(base), 'LT', at, run_id)
end

-- A message that was looked at or is now, nil when its record is gone, or is none.
local function find_message(book, message_id)
  fetch(book, 'message:' .. message_id, 'state:' .. message_id)
  return read_message(book, message_id)
end

-- Whether a book has the record of a message.
local function is_stored(book, message_id)
  return find_message(book, message_id) ~= nil
end

-- Makes the first held replay of a run due again, under the time at which it was due before.
-- @deferred
local function unhold_first(...)
  local base, book = ...
  local next_held = redis.call('ZPOPMIN', held_key(base, book.run))
  while next_held[1] do
    local topic, held_id = string.match(next_held[1], '^(.*)/(.*)$')
    local member = member_of(held_id, book.run)
    redis.call('ZREM', topic_key(base, topic, 'held'), member)
    redis.call('ZADD', topic_key(base, topic, 'due'), next_held[2], member)
    hint(base, topic, now())
    add(book, 'held', -1)
    if is_stored(book, held_id) then
      return
    end
    -- Its record is gone: the claim that meets it tells that.
    next_held = redis.call('ZPOPMIN', held_key(base, book.run))
  end
end

-- The leased replay of a run has ended, in whatever way.
local function unhold(base, book, message_id)
  if book.run ~= '' and get(book, 'leased') == message_id then
    drop(book, 'leased')
    if count_of(book, 'held') > 0 then
      unhold_first(base, book)
    end
  end
end

-- The message that a book names in a place that was looked at, unless its record is gone: then
-- nothing would ever take its place again.
-- @deferred
local function named(...)
  local base, book, place = ...
  local message_id = get(book, place)
  if not message_id then
    return nil
  elseif is_stored(book, message_id) then
    return message_id
  end
  unhold(base, book, message_id)
  drop(book, place)
  lose_named(base, book.run, message_id)
end

-- The headers of a message that are a field of their own, false when that is gone.
local function fetch_headers(book, message)
  local field, contents = 'headers:' .. message.id, contents_of(book)
  fetch(contents, field)
  return get(contents, field)
end

-- A further wake is the present one only where nothing would tell them apart: of a run whose user
-- data is deleted, nobody is shown the headers, whether they are stored still or not.
-- @deferred
local function absorbs(...)
  local book, wake_id, message, bare = ...
  local wake = find_message(book, wake_id)
  if not wake or wake.topic ~= message.topic then
    return false
  end
  local queue, deployment, headers = address_of(wake)
  if headers == false and not bare then
    headers = fetch_headers(book, wake)
  end
  return queue == message.queue and deployment == message.deployment
    and (bare or headers == message.headers)
end

-- The field of a book that names the message of an idempotency key.
local function key_field(topic, key)
  return 'key:' .. topic .. '/' .. key
end

-- The outstanding message that has an idempotency key, nil for none.
local function holder_of(base, topic, book, key)
  if book.run ~= '' then
    local place = key_field(topic, key)
    if get(book, place) then
      return named(base, book, place)
    end
    return nil
  end
  local holder = redis.call('GET', idempotency_key(base, topic, key))
  return holder and is_stored(open_message(base, topic, '', holder), holder) and holder or nil
end

-- The book of a message that is to be sent, with what may stand for it.
local function open_for(base, topic, message)
  local fields = { 'message:' .. message.id, 'state:' .. message.id }
  if message.kind == 'step' then
    fields[#fields + 1] = 'step:' .. message.step
  end
  if message.key ~= '' then
    fields[#fields + 1] = key_field(topic, message.key)
  end
  return open_book(base, topic, message.run, message.id, unpack(fields))
end

-- The outstanding message that takes the place of this one, if any.
local function standing(base, topic, book, message, bare)
  local holder = message.key ~= '' and holder_of(base, topic, book, message.key)
  if holder then
    return holder
  elseif message.kind == 'step' then
    if get(book, 'step:' .. message.step) then
      return named(base, book, 'step:' .. message.step)
    end
  elseif message.kind == 'wake' then
    local wake = get(book, 'wake')
    if wake and absorbs(book, wake, message, bare) then
      return wake
    end
  end
end

-- What is there for a message that is sent: the id of the one that stands for it, which is itself
-- when its request is sent again, for ids are made once; its book, and whether it is bare.
local function look_for(base, topic, message)
  message.topic = topic
  local bare, book = is_bare(base, message.run), open_for(base, topic, message)
  local holder = read_message(book, message.id) and message.id
    or standing(base, topic, book, message, bare)
  return holder, book, bare
end

-- Whether a message is of a step that needs none any more; and the step, if any, which an event
-- may know already.
local function is_of_closed_step(base, message, known_step)
  if message.kind ~= 'step' then
    return false
  end
  local step = known_step or read_step(base, message.run, message.step)
  return step and is_terminal(step.status), step
end

-- Notes of a run that is there that it has had a message.
local function note_queued(base, run_id)
  local state = known_run(base, run_id)
  if state.status and not state.queued then
    state.queued = '1'
    redis.call('HSET', run_key(base, run_id), 'queued', '1')
  end
end

-- One message more of a run is outstanding: that is parked no more.
local function count_up(base, book)
  if add(book, 'n', 1) == 1 then
    redis.call('ZREM', parked_key(base), book.run)
    note_queued(base, book.run)
  end
end

-- A message of no run takes its places.
local function enter_alone(base, message)
  redis.call('SADD', topics_key(base), message.topic)
  if message.key ~= '' then
    redis.call('SET', idempotency_key(base, message.topic, message.key), message.id)
  end
end

-- A message of a run takes its places. Returns whether it is a new replay that is due now.
local function enter_run(base, at, book, message, step)
  local topic, run_id = message.topic, book.run
  if get(book, 'topic') ~= topic then
    redis.call('SADD', topics_key(base), topic)
    put(book, 'topic', topic)
  end
  if message.key ~= '' then
    put(book, key_field(topic, message.key), message.id)
  end
  count_up(base, book)
  local wakes = false
  if message.kind == 'step' then
    put(book, 'step:' .. message.step, message.id)
    forgive_step(base, at, run_id, message.step, step)
  else
    if message.kind == 'wake' then
      put(book, 'wake', message.id)
    end
    -- A replay that is due now begins after whatever was recorded so far.
    wakes = message.due_at == at
    if wakes then
      forgive_wake(base, at, run_id)
    end
  end
  return wakes
end

-- A message whose record was just stored is due at a time, and takes its places. Returns whether
-- it is a new replay that is due now.
local function enter(base, at, book, message, step)
  redis.call('ZADD', topic_key(base, message.topic, 'due'), message.due_at,
    member_of(message.id, book.run))
  local wakes = false
  if book.run == '' then
    enter_alone(base, message)
  else
    wakes = enter_run(base, at, book, message, step)
  end
  announce(base, message.topic, at, message.due_at)
  return wakes
end

-- Stores the record of a new message.
local function store_message(book, at, message, bare)
  if bare then
    message.headers, message.body = '', ''
    if get(book, 'bare') == false then
      put(book, 'bare', '1')
    end
  end
  begin_state(message, message.due_at, '-')
  put(book, 'message:' .. message.id, pack_envelope(message, at))
  store_state(book, message)
  if #message.headers > INLINE_BYTES then
    put(contents_of(book), 'headers:' .. message.id, message.headers)
  end
  if #message.body > INLINE_BYTES then
    put(contents_of(book), 'body:' .. message.id, message.body)
  end
end

-- Notes which queue a run has: that of its replays. An older generation of clients has another one
-- for each of its steps.
local function note_queue(book, message)
  if book.run ~= '' and get(book, 'queue') ~= message.queue
    and not string.find(message.topic, '_wkf_step_$') then
    put(book, 'queue', message.queue)
  end
end

-- Sends a message, whose step an event may know already; the caller stores the books. Returns the
-- id of the message that stands for it, or nil when its step is terminal and nothing is left to
-- deliver; and whether it is a new replay that is due now.
-- @deferred
local function push(...)
  local base, topic, at, message, known_step = ...
  local holder, book, bare = look_for(base, topic, message)
  if holder then
    return holder
  end
  local is_closed, step = is_of_closed_step(base, message, known_step)
  if is_closed then
    return nil
  end
  store_message(book, at, message, bare)
  note_queue(book, message)
  return message.id, enter(base, at, book, message, step)
end

-- Frees what an ending message holds, and no other may have while it is outstanding: its key, and
-- the one place of its step.
local function settle(base, book, message)
  if message.key ~= '' and book.run == '' then
    redis.call('DEL', idempotency_key(base, message.topic, message.key))
  elseif message.key ~= '' then
    drop(book, key_field(message.topic, message.key))
  end
  if message.kind == 'step' then
    drop(book, 'step:' .. message.step)
  end
end

-- The book of a run that is over lives as long as messages or dead letters of it.
-- @deferred
local function forget_book(...)
  local book = ...
  if count_of(book, 'n') <= 0 and count_of(book, 'dead') <= 0 then
    delete_book(book)
  end
end

-- The same at the end of a run.
local function forget_run(base, run_id)
  local book = open_book(base, '', run_id, '')
  if get(book, 'n') then
    forget_book(book)
  end
end

-- One message of the run is outstanding no more. A live run without any is parked; one that has
-- ended, or never was, is forgotten.
local function count_down(base, at, book)
  if book.run == '' or add(book, 'n', -1) > 0 then
    return
  end
  if is_live(base, book.run) then
    park(base, at, book.run)
  else
    forget_book(book)
  end
end

-- Some messages of a run, each with its id and envelope, from a cursor on; the next cursor, `0` at
-- the end. Of a small run all are there at once, however few are asked for.
local function scan_messages(base, run_id, cursor, count)
  local reply = redis.call('HSCAN', run_queue_key(base, run_id), cursor, 'MATCH', 'message:*',
    'COUNT', count)
  local found = {}
  for i = 1, #reply[2], 2 do
    found[#found + 1] = {
      id = string.sub(reply[2][i], #'message:' + 1), envelope = reply[2][i + 1],
    }
  end
  return found, reply[1]
end

-- A message that was looked at, taken off its lease for whoever has the receipt of it; nil when the
-- lease was lost. The ZREM is the first write of the scripts that call it: a server that is full
-- refuses a growing command only there, so that a full queue can still drain.
local function end_lease(base, topic, book, message_id, receipt)
  local message = read_message(book, message_id)
  if message and message.receipt == receipt and message.topic == topic and redis.call('ZREM',
      topic_key(base, topic, 'leased'), member_of(message_id, book.run)) == 1 then
    message.receipt = '-'
    return message
  end
end

-- Takes a message that was handled out of the queue, for whoever has its receipt: the message and
-- its book, for `close_delivery`, or nil when the lease was lost. What takes its place is sent in
-- between.
local function take_delivery(base, topic, run_id, message_id, receipt)
  local book = open_message(base, topic, run_id, message_id)
  local message = end_lease(base, topic, book, message_id, receipt)
  if message then
    delete_record(book, message)
    settle(base, book, message)
  end
  return message, book
end

-- What is left to do for a message that was handled: for its step, unless that is over, and for its
-- run.
local function close_delivery(base, at, book, message, over_step)
  if message.kind == 'step' and message.step ~= over_step then
    owe_open_step(base, at, book.run, message.step)
  end
  unhold(base, book, message.id)
  count_down(base, at, book)
end

-- A message that was freed is due at a time again.
local function free(base, book, message, due_at)
  message.due_at = due_at
  store_state(book, message)
  redis.call('ZADD', topic_key(base, message.topic, 'due'), due_at,
    member_of(message.id, book.run))
  unhold(base, book, message.id)
end

-- Whether this very request has changed a message already, and its reply was lost.
local function changed_by(book, message_id, op)
  local message = read_message(book, message_id)
  return message and message.op == op and message
end

-- What was to come of a message that is a dead letter now is still owed: to nobody as long as
-- the letter is there, which is for an operator to judge, but when it is purged.
local function owe_again(base, at, message)
  if message.kind == 'step' then
    owe_open_step(base, at, message.run, message.step)
  elseif is_live(base, message.run) then
    owe_wake(base, at, message.run)
  end
end

-- Moves a message that nothing more is tried for to the dead letters.
local function bury(base, at, book, message, reason)
  local topic = message.topic
  redis.call('ZADD', topic_key(base, topic, 'dead'), at, member_of(message.id, book.run))
  redis.call('HSET', topic_key(base, topic, 'letters'), message.id, book.run)
  message.reason, message.died_at, message.receipt = reason, at, '-'
  store_state(book, message)
  settle(base, book, message)
  if book.run ~= '' then
    add(book, 'dead', 1)
    owe_again(base, at, message)
  end
  unhold(base, book, message.id)
  count_down(base, at, book)
end
