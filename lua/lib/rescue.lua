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

-- What the sweeper wants to know of a run's messages.
local function load_bookkeeping(base, run_id)
  local fields = redis.call('HMGET', run_queue_key(base, run_id), 'dead', 'rewakes',
    'rewoken_at', 'rewoken_length')
  return {
    dead = tonumber(fields[1] or '0'), rewakes = tonumber(fields[2] or '0'),
    rewoken_at = tonumber(fields[3] or '0'), rewoken_length = fields[4],
  }
end

-- The message that the sweeper sends: plain, and due now.
local function rescue(base, topic, at, message)
  message.deployment, message.headers, message.due_at = '', '', at
  return { 'OK', (push(base, topic, at, message)) }
end
