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
