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

-- The sleeper that would look first, taken out: itself and its look; empty when there is none.
-- Those that are overdue are forgotten.
local function take_first(sleepers, at)
  local first = redis.call('ZPOPMIN', sleepers)
  if first[1] and tonumber(first[2]) + OVERDUE < tonumber(at) then
    repeat
      local gone = redis.call('ZRANGE', sleepers, '-inf', '(' .. later(at, -OVERDUE), 'BYSCORE',
        'LIMIT', 0, FORGOTTEN_AT_ONCE)
      if #gone > 0 then
        redis.call('ZREM', sleepers, unpack(gone))
      end
    until #gone < FORGOTTEN_AT_ONCE
    first = redis.call('ZPOPMIN', sleepers)
  end
  return first
end

-- Tells a worker to look; whether that was possible. Who may not publish wakes nobody, and must not
-- keep those who may from it.
local function tell(base, topic, worker)
  local reply = redis.pcall('PUBLISH', worker_channel(base, topic, worker), '')
  return type(reply) ~= 'table' or not reply.err
end

-- Wakes one sleeper, if there is one.
local function hint(base, topic, at)
  local sleepers = topic_key(base, topic, 'sleepers')
  local first = take_first(sleepers, at)
  if first[1] and not tell(base, topic, first[1]) then
    redis.pcall('ZADD', sleepers, first[2], first[1])
  end
end

-- The first sleeper that looks again by itself, leaving out a worker: when.
local function next_look(base, topic, at, but)
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
  local is_due = tonumber(due_at) <= tonumber(at)
  local look = not is_due and next_look(base, topic, at)
  if is_due or look and tonumber(due_at) < tonumber(look) then
    hint(base, topic, at)
  end
end

-- Lets a worker sleep that has found nothing more: until a message wakes it, or for `look` ms. Of
-- what comes in that time, at `upcoming`, it takes care if nobody else looks before.
-- Returns until when; empty when the server takes no writes now.
local function sleep(base, topic, at, worker, look, upcoming)
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
local function leave(base, topic, at, worker, upcoming)
  redis.call('ZREM', topic_key(base, topic, 'sleepers'), worker)
  if upcoming ~= '' then
    announce(base, topic, at, upcoming)
  end
end
