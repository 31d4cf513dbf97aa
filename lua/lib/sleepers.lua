-- @include lib/keys
-- @include lib/later

-- Workers that sleep: they have found nothing, have room for more, and listen. They lie in the
-- topic's `sleepers` by the time at which they look again by themselves. A message wakes one of
-- them, that which would look first, on a channel of its own. It sleeps no longer then: until it
-- has looked again nothing wakes it.
--
-- One that is gone, or that its process keeps from looking, costs the message that was to wake it
-- no more than the next look of another one. When its own look is overdue it is passed over.
--
-- Others rely on the look of a sleeper. So one that will not look, for want of room or because it
-- stops, leaves the set, and somebody else is told of what comes next.

local OVERDUE, FORGOTTEN_AT_ONCE = 1000, 1000

-- Tells a worker to look; whether that was possible. Who may not publish wakes nobody, and must not
-- keep those who may from it.
local function tell(base, topic, worker)
  local reply = redis.pcall('PUBLISH', worker_channel(base, topic, worker), '')
  return type(reply) ~= 'table' or not reply.err
end

-- Wakes the sleeper that would look first, which was taken out: itself and its look. Those that are
-- overdue are forgotten.
-- @deferred
local function wake_first(...)
  local base, topic, at, sleepers, first = ...
  if tonumber(first[2]) + OVERDUE < tonumber(at) then
    repeat
      local gone = redis.call('ZRANGE', sleepers, '-inf', '(' .. later(at, -OVERDUE), 'BYSCORE',
        'LIMIT', 0, FORGOTTEN_AT_ONCE)
      if #gone > 0 then
        redis.call('ZREM', sleepers, unpack(gone))
      end
    until #gone < FORGOTTEN_AT_ONCE
    first = redis.call('ZPOPMIN', sleepers)
  end
  if first[1] and not tell(base, topic, first[1]) then
    redis.pcall('ZADD', sleepers, first[2], first[1])
  end
end

-- Wakes one sleeper, if there is one.
local function hint(base, topic, at)
  local sleepers = topic_key(base, topic, 'sleepers')
  local first = redis.call('ZPOPMIN', sleepers)
  if first[1] then
    wake_first(base, topic, at, sleepers, first)
  end
end

-- The first sleeper that looks again by itself, leaving out a worker: when.
-- @deferred
local function next_look(...)
  local base, topic, at, but = ...
  local sleepers = topic_key(base, topic, 'sleepers')
  local looks = redis.call('ZRANGE', sleepers, later(at, -OVERDUE), '+inf', 'BYSCORE',
    'LIMIT', 0, 2, 'WITHSCORES')
  return looks[1] ~= but and looks[2] or looks[4]
end

-- When the next message of a topic is due, or its next lease ends; empty for none.
local function next_time(due, leased)
  local upcoming = ''
  for _, set in ipairs({ due, leased }) do
    local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
    if first and (upcoming == '' or tonumber(first) < tonumber(upcoming)) then
      upcoming = first
    end
  end
  return upcoming
end

-- Tells of a message: one that is due now wakes a sleeper, and so does one that comes before any of
-- them looks again.
local function announce(base, topic, at, due_at)
  local is_near = tonumber(due_at) <= tonumber(at)
  if not is_near then
    local look = next_look(base, topic, at)
    is_near = look and tonumber(due_at) < tonumber(look)
  end
  if is_near then
    hint(base, topic, at)
  end
end

-- Lets a worker sleep that has found nothing more: until a message wakes it, or for `look` ms. Of
-- what comes in that time, at `upcoming`, it takes care if nobody else looks before.
-- Returns until when; empty when the server takes no writes now.
-- @deferred
local function sleep(...)
  local base, topic, at, worker, look, upcoming = ...
  local ends = later(at, look)
  if upcoming ~= '' and tonumber(upcoming) < tonumber(ends) then
    local other = next_look(base, topic, at, worker)
    if not other or tonumber(upcoming) < tonumber(other) then
      ends = upcoming
    end
  end
  local reply = redis.pcall('ZADD', topic_key(base, topic, 'sleepers'), ends, worker)
  return type(reply) == 'table' and reply.err and '' or ends
end

-- Lets a worker sleep no longer. Another one is told of what is due, or comes before any of them
-- looks again, at `upcoming`.
-- @deferred
local function leave(...)
  local base, topic, at, worker, upcoming = ...
  redis.call('ZREM', topic_key(base, topic, 'sleepers'), worker)
  if upcoming ~= '' then
    announce(base, topic, at, upcoming)
  end
end
