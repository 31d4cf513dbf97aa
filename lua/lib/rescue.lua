-- @include lib/debt
-- @include lib/later
-- @include lib/queue

-- How the sweeper judges: what it leaves alone it looks at again later.

local LONG = 60 * 60 * 1000

-- Whether a member has been in an index for `interval` ms.
local function is_old(index, member, at, interval)
  local since = redis.call('ZSCORE', index, member)
  return since and tonumber(since) <= tonumber(at) - tonumber(interval)
end

-- Leaves a member alone for `pause` ms: the score is the time from which the interval counts.
local function look_again(index, member, at, interval, pause)
  redis.call('ZADD', index, later(at, pause - interval), member)
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
