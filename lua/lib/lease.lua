-- @include lib/queue

-- Leases that ended without an answer: their worker is gone.

local EXPIRED_AT_ONCE = 100

-- Frees leases that have expired. The receipt goes, so that a worker that was only slow can change
-- nothing any more; the message is due at once, with nobody to blame, or dead after more lost
-- leases than any series of restarts explains. Those whose record is gone are added to `dropped`.
-- @deferred
local function free_leases(...)
  local base, topic, at, max_lost, leased, expired, dropped = ...
  for _, member in ipairs(expired) do
    local message_id, run_id = split_member(member)
    local book = open_message(base, topic, run_id, message_id)
    local message = read_message(book, message_id)
    redis.call('ZREM', leased, member)
    if not message then
      lose(base, topic, member)
      dropped[#dropped + 1] = member
    else
      message.lost, message.receipt = increased(message.lost, 1), '-'
      if tonumber(message.lost) >= tonumber(max_lost) then
        bury(base, at, book, message, 'max_lost_leases')
      else
        free(base, book, message, at)
      end
    end
  end
  store_books()
end

-- Frees expired leases, a bounded number at a time. Returns how many, and when the next one ends;
-- those whose record is gone are added to `dropped`.
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
