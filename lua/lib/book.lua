-- @include lib/keys
-- @include lib/message

-- Books. A book is the hash with the messages of a run and the bookkeeping of them; a message of no
-- run has a book of its own (ARCHITECTURE, Keys). A script looks at a book by one command, decides,
-- and stores all that it has changed by one more, or two where fields go. Until `store_books`
-- nothing of that is written.

-- The books that this script has looked at, by key. `values` are the fields that are known, false
-- for those that are not there; `changed` are those to be stored.
local books = {}

-- Reads fields of a book that are not known yet, by one command.
local function fetch(book, ...)
  local values, unknown = book.values, {}
  for _, name in ipairs({ ... }) do
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
    return book
  end
  book = { key = key, run = run_id, base = base, values = {}, changed = {}, is_changed = false }
  books[key] = book
  if run_id == '' then
    fetch(book, ...)
  else
    local found = redis.call('HMGET', key, 'n', 'dead', 'held', 'leased', 'wake', 'queue', 'topic',
      'bare', ...)
    local values = {
      n = found[1], dead = found[2], held = found[3], leased = found[4], wake = found[5],
      queue = found[6], topic = found[7], bare = found[8],
    }
    for i, name in ipairs({ ... }) do
      values[name] = found[8 + i]
    end
    book.values = values
  end
  return book
end

-- The same, with a message.
local function open_message(base, topic, run_id, message_id)
  return open_book(base, topic, run_id, message_id, 'message:' .. message_id,
    'state:' .. message_id)
end

-- Where large headers and bodies are: those of a run in a hash beside its book, used as a book is.
-- To walk by the fields of a hash some servers copy all of its values.
local function contents_of(book)
  if book.run == '' then
    return book
  end
  local key = contents_key(book.base, book.run)
  local contents = books[key] or { key = key, run = book.run, values = {}, changed = {} }
  books[key] = contents
  return contents
end

-- A field that was looked at or changed, false for none.
local function get(book, name)
  return book.values[name]
end

-- Changes a field.
local function put(book, name, value)
  book.values[name] = value
  book.changed[name] = value
  book.is_changed = true
end

-- Deletes a field, which need not have been looked at.
local function drop(book, name)
  if book.values[name] ~= false then
    put(book, name, false)
  end
end

-- One of the counts of a book.
local function count_of(book, name)
  return tonumber(get(book, name) or '0')
end

-- Changes a count; what it is now.
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

-- Deletes the book of a run, with what was to be stored of it.
local function delete_book(book)
  local contents = contents_of(book)
  redis.call('DEL', book.key, contents.key)
  books[book.key], books[contents.key] = nil, nil
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

-- Changes the state of a message.
local function store_state(book, message)
  put(book, 'state:' .. message.id, pack_state(message))
end

-- Deletes the record of a message. Its state and its envelope tell which
-- of the rarer fields it has.
local function delete_record(book, message)
  drop(book, 'message:' .. message.id)
  drop(book, 'state:' .. message.id)
  if message.large_headers then
    drop(contents_of(book), 'headers:' .. message.id)
  end
  if message.large_body then
    drop(contents_of(book), 'body:' .. message.id)
  end
  if message.failures ~= '0' then
    drop(book, 'error:' .. message.id)
  end
  if message.postponed ~= '0' then
    drop(book, 'declined:' .. message.id)
  end
end
