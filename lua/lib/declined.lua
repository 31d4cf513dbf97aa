-- @include lib/keys
-- @include lib/sleepers

-- Messages that workers have declined (contract, section 7, postpone). Such a message is due again
-- later, and until then lies in the topic's `declined` too, since when it was first postponed. Its
-- hash names the workers that declined it: all others may have it at once.

local MAX_DECLINERS, KEPT_DECLINERS = 64, 32
local OFFERS = 16

-- The worker that a receipt was made for.
local function worker_of(receipt)
  return string.match(receipt, '^[^/]*')
end

local function is_among(worker, decliners)
  return string.find(' ' .. decliners .. ' ', ' ' .. worker .. ' ', 1, true) ~= nil
end

-- Whether so many have declined a message that it is offered to nobody before its time.
local function are_too_many(decliners)
  local _, spaces = string.gsub(decliners, ' ', '')
  return spaces + 1 >= MAX_DECLINERS
end

-- The decliners with one more, which may be among them. Where there are too many the oldest are
-- forgotten, which they may only where the message came by its time: else two fleets would hand it
-- to each other for ever.
local function with_decliner(decliners, worker)
  local all = {}
  for each in string.gmatch(decliners, '%S+') do
    if each ~= worker then
      all[#all + 1] = each
    end
  end
  all[#all + 1] = worker
  local first = are_too_many(decliners) and #all - KEPT_DECLINERS + 1 or 1
  return table.concat(all, ' ', first)
end

-- Wakes a sleeper that is none of the decliners; whether there was one.
local function hint_another(base, topic, at, decliners)
  local sleepers = topic_key(base, topic, 'sleepers')
  for _, worker in ipairs(redis.call('ZRANGE', sleepers, later(at, -OVERDUE), '+inf', 'BYSCORE',
      'LIMIT', 0, MAX_DECLINERS + 1)) do
    if not is_among(worker, decliners) then
      local is_told = tell(base, topic, worker)
      if is_told then
        redis.call('ZREM', sleepers, worker)
      end
      return is_told
    end
  end
  return false
end

-- Wakes a sleeper for one of the messages that were declined last, if there is one for which a
-- worker sleeps that has not declined it.
local function hint_declined(base, topic, at)
  local declined = topic_key(base, topic, 'declined')
  for _, message_id in ipairs(redis.call('ZRANGE', declined, 0, OFFERS - 1, 'REV')) do
    local decliners = redis.call('HGET', message_key(base, topic, message_id), 'declined_by')
    if decliners and not are_too_many(decliners) and hint_another(base, topic, at, decliners) then
      return
    end
  end
end

-- Whether a message may be offered to a worker before its time.
local function is_offered(base, topic, message_id, worker)
  local decliners = redis.call('HGET', message_key(base, topic, message_id), 'declined_by') or ''
  return not are_too_many(decliners) and not is_among(worker, decliners)
end

-- Some of the declined messages that a worker may have before their time, and whether there are
-- more to look at: those that were declined last, and some from a place on that changes (`spot`,
-- from 0 to 1), or hundreds that this worker has declined would hide one that it has not.
local function offers(base, topic, worker, spot)
  local declined = topic_key(base, topic, 'declined')
  local count = redis.call('ZCARD', declined)
  if count == 0 then
    return {}, false
  end
  local found = redis.call('ZRANGE', declined, 0, OFFERS - 1, 'REV')
  local rest = count - #found
  if rest > 0 then
    local first = math.floor(tonumber(spot) * rest)
    for i = first, first + math.min(OFFERS, rest) - 1 do
      found[#found + 1] = redis.call('ZRANGE', declined, i % rest, i % rest)[1]
    end
  end
  local offered = {}
  for _, message_id in ipairs(found) do
    if is_offered(base, topic, message_id, worker) then
      offered[#offered + 1] = message_id
    end
  end
  return offered, count > #found
end
