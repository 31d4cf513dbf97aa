-- Lists the steps of a run in the order of their creation. Large ones are less than `limit`, and
-- more to come.
--
-- KEYS: run, events
-- ARGV: resolve_data, order, after, limit
-- Returns: OK more steps, a step being its place, its id, then its row
--
-- @unwaited
-- @include lib/page
-- @include lib/step_row

local found = redis.call('HMGET', run, 'steps', 'expired_at')
local count = tonumber(found[1] or '0')
local shows = found[2] and 'none' or resolve_data
local step = order == 'asc' and 1 or -1
local first = after == '' and (order == 'asc' and 1 or count) or tonumber(after) + step
if order ~= 'asc' then
  -- The cursor may be of another run of this id, or made up.
  first = math.min(first, count)
end
local last = order == 'asc' and math.min(first + limit - 1, count) or math.max(first - limit + 1, 1)
local places, ids = {}, {}
for place = first, last, step do
  places[#places + 1] = string.format('%.0f', place)
end
if #places > 0 then
  local fields = {}
  for i, place in ipairs(places) do
    fields[i] = 'steps:' .. place
  end
  ids = redis.call('HMGET', run, unpack(fields))
end
local is_more = order == 'asc' and last < count or order ~= 'asc' and last > 1
local members = {}
for i, id in ipairs(ids) do
  members[i] = { places[i], id }
end
local rows, more = read_rows(members, is_more and #members > 0 and '1' or '', '', function(member)
  local step_id = member[2]
  local fields = redis.call('HMGET', run, step_field(step_id), name_field(step_id))
  return { member[1], step_id, step_row(fields[1], fields[2], events, shows) }
end)
return { 'OK', more, rows }
