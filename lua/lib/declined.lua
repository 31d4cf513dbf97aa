-- @include lib/book
-- @include lib/keys
-- @include lib/sleepers

-- Messages that workers have declined (contract, section 7, postpone). Such a message is due again
-- later, and until then lies in the topic's `declined` too, since when it was first postponed. A
-- note beside it names the workers that declined it: all others may have it at once.

local MAX_DECLINERS = 64
local KEPT_DECLINERS = 32
local OFFERS = 16

-- What is noted of a postponed message: since when it is one, who has declined it, by spaces, and
-- the name of its step; nil for nothing.
-- @deferred
local function declined_note(...)
  local book, message_id = ...
  local field = 'declined:' .. message_id
  fetch(book, field)
  local since, decliners, step_name = string.match(get(book, field) or '', '^(%d+) ([^\n]*)\n(.*)$')
  return since and { since = since, decliners = decliners, step_name = step_name }
end

-- The workers that have declined one of the members of `declined`; nil for none.
local function decliners_of(base, topic, member)
  local message_id, run_id = split_member(member)
  local note = declined_note(open_book(base, topic, run_id, message_id), message_id)
  return note and note.decliners
end

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
-- @deferred
local function hint_another(...)
  local base, topic, at, decliners = ...
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
-- @deferred
local function hint_declined(...)
  local base, topic, at = ...
  local declined = topic_key(base, topic, 'declined')
  for _, member in ipairs(redis.call('ZRANGE', declined, 0, OFFERS - 1, 'REV')) do
    local decliners = decliners_of(base, topic, member)
    if decliners and not are_too_many(decliners) and hint_another(base, topic, at, decliners) then
      return
    end
  end
end

-- Whether a message may be offered to a worker before its time.
local function is_offered(base, topic, member, worker)
  local decliners = decliners_of(base, topic, member) or ''
  return not are_too_many(decliners) and not is_among(worker, decliners)
end

-- Some of the declined messages, so many altogether, that a worker may have before their time, and
-- whether there are more to look at: those that were declined last, and some from a place on that
-- changes (`spot`, from 0 to 1), or hundreds that this worker has declined would hide one that it
-- has not.
-- @deferred
local function offers(...)
  local base, topic, worker, spot, count = ...
  local declined = topic_key(base, topic, 'declined')
  local found = redis.call('ZRANGE', declined, 0, OFFERS - 1, 'REV')
  local rest = count - #found
  if rest > 0 then
    local first = math.floor(tonumber(spot) * rest)
    for i = first, first + math.min(OFFERS, rest) - 1 do
      found[#found + 1] = redis.call('ZRANGE', declined, i % rest, i % rest)[1]
    end
  end
  local offered = {}
  for _, member in ipairs(found) do
    if is_offered(base, topic, member, worker) then
      offered[#offered + 1] = member
    end
  end
  return offered, count > #found
end
