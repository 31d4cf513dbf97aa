-- Sets right what a run has of its messages, after the record of one was found to be gone: what is
-- named and not there is forgotten, and what was to come of it is owed again.
--
-- It goes on piece by piece, first through the held replays, then through the steps; `after` is
-- the `next` of the last call, at first empty.
--
-- KEYS: run, events, lost
-- ARGV: base, run_id, after
-- Returns: OK next gone, the former empty when it is done; gone are ids of held replays
--
-- @include lib/clock
-- @include lib/later
-- @include lib/queue
-- @include lib/request
-- @include lib/rescue

local AT_ONCE, COUNTED_FIELDS = 500, 4000

local gone = {}

-- Takes held replays whose record is gone out of their sets, of a piece that begins at a place.
-- Returns how many of it are left.
local function mend_held(book, first)
  local held, kept = held_key(base, run_id), 0
  for _, each in ipairs(redis.call('ZRANGE', held, first, first + AT_ONCE - 1)) do
    local topic, message_id = string.match(each, '^(.*)/(.*)$')
    if is_stored(book, message_id) then
      kept = kept + 1
    else
      redis.call('ZREM', held, each)
      redis.call('ZREM', topic_key(base, topic, 'held'), member_of(message_id, run_id))
      gone[#gone + 1] = message_id
    end
  end
  return kept
end

-- Whether a step was created by its own start: then it needs no message.
local function is_lazy(step)
  if step.attempt == '0' or step.first ~= '-' then
    return false
  end
  local created = slot_of(step.slot)
  local own = own_entry(events, later(created, 1), read_entry(events, created).op)
  return own and own.type == 'step_started'
end

-- Owes the open steps between two places their messages, where they have none.
local function mend_steps(book, at, state, first, last)
  local places, records, messages = {}, {}, {}
  for place = first, last do
    places[#places + 1] = 'steps:' .. place
  end
  local ids = redis.call('HMGET', run, unpack(places))
  for i, step_id in ipairs(ids) do
    records[i], messages[i] = step_field(step_id), 'step:' .. step_id
  end
  fetch(book, unpack(messages))
  local changed = {}
  for i, record in ipairs(redis.call('HMGET', run, unpack(records))) do
    local step = words_of(record)
    if not is_terminal(step.status) and not named(base, book, messages[i]) and step.owed == '-'
      and not is_lazy(step) then
      step.owed = distance_of(step.created_at, at)
      state.steps_owed = state.steps_owed + 1
      changed[#changed + 1] = records[i]
      changed[#changed + 1] = record_of(step)
    end
  end
  if #changed > 0 then
    store_debts(base, at, run_id, state, unpack(changed))
  end
end

-- Of the fields of a book, the ids of the messages that have an envelope, and all others that are
-- of one message.
local function parts_of_messages(fields)
  local ids, rest = {}, {}
  for _, field in ipairs(fields) do
    local part, message_id = string.match(field, '^(%l+):([^/]*)$')
    if part == 'message' then
      ids[#ids + 1] = message_id
    elseif part == 'state' or part == 'error' or part == 'declined' then
      rest[#rest + 1] = { field = field, id = message_id }
    end
  end
  return ids, rest
end

-- Counts the messages of a book that are whole, and forgets what there is of others.
local function mend_messages(book, fields)
  local ids, rest = parts_of_messages(fields)
  local outstanding, dead, is_whole = 0, 0, {}
  for _, message_id in ipairs(ids) do
    local message = find_message(book, message_id)
    if not message then
      drop(book, 'message:' .. message_id)
    else
      is_whole[message_id] = true
      local letter = message.reason ~= ''
      outstanding, dead = outstanding + (letter and 0 or 1), dead + (letter and 1 or 0)
    end
  end
  for _, each in ipairs(rest) do
    if not is_whole[each.id] then
      drop(book, each.field)
    end
  end
  local contents = contents_of(book)
  for _, field in ipairs(redis.call('HKEYS', contents.key)) do
    if not is_whole[string.match(field, ':(.*)$')] then
      drop(contents, field)
    end
  end
  return outstanding, dead
end

-- Counts the messages of a book, and forgets what it names that is not there. Returns whether it
-- has: of a book with thousands of fields it takes too long.
local function mend_book(book)
  local contents = contents_of(book)
  if redis.call('HLEN', book.key) + redis.call('HLEN', contents.key) > COUNTED_FIELDS then
    return false
  end
  local fields = redis.call('HKEYS', book.key)
  local outstanding, dead = mend_messages(book, fields)
  for _, field in ipairs(fields) do
    local part = string.match(field, '^(%l+)')
    if part == 'step' or part == 'key' or field == 'wake' or field == 'leased' then
      fetch(book, field)
      named(base, book, field)
    end
  end
  if count_of(book, 'n') ~= outstanding or count_of(book, 'dead') ~= dead then
    put(book, 'n', string.format('%d', outstanding))
    put(book, 'dead', string.format('%d', dead))
  end
  return true
end

-- The end: sets the book right, and owes the run what it needs. Counts that are too high would keep
-- it from being parked or forgotten: where they are left they are looked at again.
local function finish(book, at, live)
  local is_right = mend_book(book)
  local held = redis.call('ZCARD', held_key(base, run_id))
  if count_of(book, 'held') ~= held then
    put(book, 'held', string.format('%d', held))
  end
  if held > 0 and not get(book, 'leased') then
    unhold_first(base, book)
  end
  if is_right then
    redis.call('ZREM', lost, run_id)
  else
    redis.call('ZADD', lost, later(at, LONG), run_id)
  end
  if live then
    -- What was left to an operator, for the sake of a letter that is gone, is so no more.
    restart_debts(base, at, run_id)
    owe_wake(base, at, run_id)
    if count_of(book, 'n') <= 0 then
      park(base, at, run_id)
    end
  else
    forget_book(book)
  end
end

if not redis.call('ZSCORE', lost, run_id) then
  return { 'OK', '', {} }
end
local at = now()
local state, count = look_at(run, 'steps')
local step_count = tonumber(count or '0')
local live = is_live(base, run_id)
local book = open_book(base, '', run_id, '')
local kind, place = string.match(after, '^(%l+) (%d+)$')
place = tonumber(place or '0')

-- A piece of the held replays.
if kind ~= 'steps' then
  place = place + mend_held(book, place)
  if redis.call('ZCARD', held_key(base, run_id)) > place then
    store_books()
    return { 'OK', string.format('held %d', place), gone }
  end
  place = 0
end

-- A piece of the steps, behind the last held replay too.
local last = math.min(step_count, place + AT_ONCE)
if live and place < last then
  mend_steps(book, at, state, place + 1, last)
end
if live and last < step_count then
  store_books()
  return { 'OK', string.format('steps %d', last), gone }
end
finish(book, at, live)
store_books()
return { 'OK', '', gone }
