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
-- a place, `place_of` the place of a member. What is left out lies there for a moment only.
local function page_of_some(fetch, keeps, place_of, after, limit)
  local wanted = tonumber(limit) + 1
  local kept, more = {}, '1'
  while more ~= '' and #kept < wanted do
    local members
    members, more = fetch(after, wanted)
    for _, member in ipairs(members) do
      if #kept < wanted and keeps(member) then
        kept[#kept + 1] = member
      end
    end
    if more ~= '' then
      after = place_of(members[#members])
    end
  end
  return cut(kept, wanted - 1)
end

-- Of a sorted set whose scores are times, up to the time `last`; members of one time by their text.
-- `after_time` and `after_member` are the place behind which the page begins, or empty.
local function page_by_time(index, last, after_time, after_member, limit)
  local wanted = tonumber(limit)
  local members = {}
  if after_time ~= '' then
    for _, member in ipairs(redis.call('ZRANGE', index, after_time, after_time, 'BYSCORE')) do
      if member > after_member and #members <= wanted then
        members[#members + 1] = member
      end
    end
  end
  local from = after_time == '' and '-inf' or '(' .. after_time
  for _, member in ipairs(redis.call('ZRANGE', index, from, last, 'BYSCORE', 'LIMIT', 0,
    wanted + 1 - #members)) do
    members[#members + 1] = member
  end
  return cut(members, wanted)
end
