-- @include lib/debt
-- @include lib/later
-- @include lib/queue

-- How the sweeper judges: what it leaves alone it looks at again later.

local LONG = 60 * 60 * 1000

-- Whether something has been so since a time, empty or false for not at all, for `interval` ms.
local function is_old(since, at, interval)
  return since and since ~= '' and tonumber(since) <= tonumber(at) - tonumber(interval)
end

-- The time to note for what is to be left alone for `pause` ms: from it on the interval counts.
local function after_pause(at, interval, pause)
  return later(at, pause - interval)
end

-- The messages of a run, with what the sweeper notes of it.
local function open_run(base, run_id)
  return open_book(base, '', run_id, '', 'rewakes', 'rewoken_at', 'rewoken_length')
end

-- The message that the sweeper sends: plain, and due now.
local function rescue(base, topic, at, message)
  message.headers, message.due_at = '', at
  local sent = push(base, topic, at, message)
  store_books()
  return { 'OK', sent }
end
