-- Pages of the indexes: at most `limit` members after `after`, and whether there are more.

local function cut(members, limit)
  local more = #members > limit
  if more then
    members[#members] = nil
  end
  return members, more and '1' or ''
end

-- Of a sorted set whose scores are slots; `after` is a slot, or empty.
local function page_by_slot(index, order, after, limit)
  limit = tonumber(limit)
  local from = after == '' and (order == 'asc' and '-inf' or '+inf') or '(' .. after
  local members
  if order == 'asc' then
    members = redis.call('ZRANGE', index, from, '+inf', 'BYSCORE', 'LIMIT', 0, limit + 1)
  else
    members = redis.call('ZRANGE', index, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, limit + 1)
  end
  return cut(members, limit)
end

-- Of sorted sets whose members order themselves, merged; `after` is a member, or empty.
local function page_by_member(indexes, order, after, limit)
  limit = tonumber(limit)
  local from = after == '' and (order == 'asc' and '-' or '+') or '(' .. after
  local members = {}
  for _, index in ipairs(indexes) do
    local found
    if order == 'asc' then
      found = redis.call('ZRANGE', index, from, '+', 'BYLEX', 'LIMIT', 0, limit + 1)
    else
      found = redis.call('ZRANGE', index, from, '-', 'BYLEX', 'REV', 'LIMIT', 0, limit + 1)
    end
    for _, member in ipairs(found) do
      members[#members + 1] = member
    end
  end
  if #indexes > 1 then
    table.sort(members, function(a, b)
      if order == 'asc' then
        return a < b
      end
      return a > b
    end)
    for i = #members, limit + 2, -1 do
      members[i] = nil
    end
  end
  return cut(members, limit)
end

-- Of those members of an index for which `keeps` holds. `fetch` gives a page of all of them behind
-- a place, `place_of` the place of a member. What is left out may be as many as were ever there: a
-- bounded number is looked at, and where that does not tell whether there are more, the third
-- answer is the place to go on behind.
local LOOKS_AT_ONCE = 250

local function page_of_some(fetch, keeps, place_of, after, limit)
  local wanted = tonumber(limit)
  local members, more = fetch(after, LOOKS_AT_ONCE)
  local kept = {}
  for _, member in ipairs(members) do
    if keeps(member) then
      if #kept == wanted then
        return kept, '1', ''
      end
      kept[#kept + 1] = member
    end
  end
  return kept, '', more ~= '' and place_of(members[#members]) or ''
end

-- How many members of a sorted set come before a place in it, which is a time and a member, there
-- or not; with `and_there` the one that is there as well. Any number may have one time: it is found
-- by halves.
local function rank_of(index, time, member, and_there)
  local low = redis.call('ZCOUNT', index, '-inf', '(' .. time)
  local high = low + redis.call('ZCOUNT', index, time, time)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', index, middle, middle)[1]
    if found < member or and_there and found == member then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Of a sorted set whose scores are times, up to the time `last`; members of one time by their text.
-- `after_time` and `after_member` are the place behind which the page begins, or empty.
local function page_by_time(index, last, after_time, after_member, limit)
  local first = after_time == '' and 0 or rank_of(index, after_time, after_member, true)
  local wanted = tonumber(limit)
  local count = math.min(redis.call('ZCOUNT', index, '-inf', last) - first, wanted + 1)
  if count <= 0 then
    return {}, ''
  end
  return cut(redis.call('ZRANGE', index, first, first + count - 1), wanted)
end

-- The newest members of such a set in front of a place, or of its end, newest first.
local function newest_by_time(index, before_time, before_member, limit)
  local past = before_time == '' and redis.call('ZCARD', index)
    or rank_of(index, before_time, before_member, false)
  local first = math.max(past - tonumber(limit), 0)
  local newest = {}
  for i, member in ipairs(redis.call('ZRANGE', index, first, past - 1)) do
    newest[past - first - i + 1] = member
  end
  return newest, first > 0
end

-- Rows of a page are read until they have so many bytes: large ones come by several scripts.
local PAGE_BYTES = 1024 * 1024

local function bytes_of(value)
  if type(value) == 'string' then
    return #value
  end
  local sum = 0
  for _, part in ipairs(value or {}) do
    sum = sum + bytes_of(part)
  end
  return sum
end

-- The rows of a page's members, at least one, whether there are more behind them, and the place
-- that `page_of_some` goes on behind.
local function read_rows(members, more, following, read)
  local rows, bytes = {}, 0
  for i, member in ipairs(members) do
    rows[i] = read(member)
    bytes = bytes + bytes_of(rows[i])
    if bytes >= PAGE_BYTES and i < #members then
      return rows, '1', ''
    end
  end
  return rows, more, following
end
