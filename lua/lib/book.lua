-- @include lib/keys
-- @include lib/message

-- Books: what a run has of its messages, a hash; a message of no run has one of its own
-- (ARCHITECTURE, Keys). A script looks at a book by one command, decides, and stores all that it
-- has changed by one more, or two where fields go. Until `store_books` nothing of that is written.

local books = {}

-- Reads fields of a book that are not known yet, by one command.
local function fetch(book, ...)
  local values, unknown = book.values, {}
  for i = 1, select('#', ...) do
    local name = select(i, ...)
    if values[name] == nil then
      unknown[#unknown + 1] = name
    end
  end
  if unknown[1] then
    for i, value in ipairs(redis.call('HMGET', book.key, unpack(unknown))) do
      values[unknown[i]] = value
    end
  end
end

-- The book of a run, or of a message of no run, with what decides about all of its messages and
-- further fields.
local function open_book(base, topic, run_id, message_id, ...)
  local key = run_id == '' and message_key(base, topic, message_id) or run_queue_key(base, run_id)
  local book = books[key]
  if book then
    fetch(book, ...)
  elseif run_id == '' then
    book = { key = key, run = '', values = {}, changed = {} }
    books[key] = book
    fetch(book, ...)
  else
    book = { key = key, run = run_id, values = {}, changed = {} }
    books[key] = book
    fetch(book, 'n', 'dead', 'held', 'leased', 'wake', 'queue', 'topic', 'bare', ...)
  end
  return book
end

-- The same, with a message.
local function open_message(base, topic, run_id, message_id)
  return open_book(base, topic, run_id, message_id, 'message:' .. message_id,
    'state:' .. message_id)
end

-- A field that was looked at, false for none.
local function get(book, name)
  return book.values[name]
end

local function put(book, name, value)
  book.values[name] = value
  book.changed[name] = value
  book.is_changed = true
end

local function drop(book, name)
  if book.values[name] ~= false then
    put(book, name, false)
  end
end

-- One of the counts of a book; and the same, changed.
local function count_of(book, name)
  return tonumber(get(book, name) or '0')
end

local function add(book, name, difference)
  local count = count_of(book, name) + difference
  put(book, name, string.format('%d', count))
  return count
end

-- Stores what this script has changed.
local function store_books()
  for key, book in pairs(books) do
    if book.is_changed then
      local kept, gone = {}, {}
      for name, value in pairs(book.changed) do
        if value then
          kept[#kept + 1] = name
          kept[#kept + 1] = value
        else
          gone[#gone + 1] = name
        end
      end
      book.changed, book.is_changed = {}, false
      if kept[1] then
        redis.call('HSET', key, unpack(kept))
      end
      if gone[1] then
        redis.call('HDEL', key, unpack(gone))
      end
    end
  end
end

-- Deletes a book, with what was to be stored of it.
local function delete_book(book)
  redis.call('DEL', book.key)
  books[book.key] = nil
end

-- Of a message whose fields were looked at: all that is stored of it; nil when its record is gone,
-- or is none.
local function read_message(book, message_id)
  local envelope, state = get(book, 'message:' .. message_id), get(book, 'state:' .. message_id)
  local message = envelope and state and unpack_envelope(envelope)
  if message and add_state(message, state) then
    message.id, message.run = message_id, book.run
    return message
  end
end

local function store_state(book, message)
  put(book, 'state:' .. message.id, pack_state(message))
end

-- Deletes the record of a message. Which of the rarer fields it has its record tells.
local function delete_record(book, message)
  drop(book, 'message:' .. message.id)
  drop(book, 'state:' .. message.id)
  if message.large_headers then
    drop(book, 'headers:' .. message.id)
  end
  if message.large_body then
    drop(book, 'body:' .. message.id)
  end
  if message.failures ~= '0' then
    drop(book, 'error:' .. message.id)
  end
  if message.postponed ~= '0' then
    drop(book, 'declined:' .. message.id)
  end
end
