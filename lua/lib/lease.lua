-- @include lib/queue

-- Leases that ended without an answer: their worker is gone.

local EXPIRED_AT_ONCE = 100

-- Frees leases that have expired. The receipt goes, so that a worker that was only slow can change
-- nothing any more; the message is due at once, with nobody to blame, or dead after more lost
-- leases than any series of restarts explains. Ids whose record is gone are added to `dropped`.
-- @deferred
local function free_leases(...)
  local base, topic, at, max_lost, leased, expired, dropped = ...
  for _, message_id in ipairs(expired) do
    local key = message_key(base, topic, message_id)
    local message = load_message(key)
    redis.call('ZREM', leased, message_id)
    if not message then
      lose(base, topic, message_id)
      dropped[#dropped + 1] = message_id
    elseif redis.call('HINCRBY', key, 'lost', '1') >= tonumber(max_lost) then
      bury(base, topic, at, message_id, message, 'max_lost_leases')
    else
      redis.call('HDEL', key, 'receipt')
      redis.call('HSET', key, 'due_at', at)
      redis.call('ZADD', topic_key(base, topic, 'due'), at, message_id)
      unhold(base, message.run, message_id)
    end
  end
end

-- Frees expired leases, a bounded number at a time. Returns how many, and when the next one ends;
-- ids whose record is gone are added to `dropped`.
local function expire_leases(base, topic, at, max_lost, dropped)
  local leased = topic_key(base, topic, 'leased')
  local first = redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) > tonumber(at) then
    return 0, first
  end
  local expired = redis.call('ZRANGE', leased, '-inf', at, 'BYSCORE', 'LIMIT', 0,
    EXPIRED_AT_ONCE)
  free_leases(base, topic, at, max_lost, leased, expired, dropped)
  return #expired, redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]
end
