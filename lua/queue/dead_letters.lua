-- Lists the dead letters of a topic by the time of their death, then by id.
--
-- `after_time` and `after_id` are the place behind which the page begins, or empty. It ends before
-- the letter with which it would have more than `max_bytes` of content, but for the first one.
--
-- KEYS: dead
-- ARGV: base, topic, after_time, after_id, limit, max_bytes
-- Returns: OK more letters next gone, a letter being `<time>:<id>`, then the pairs of its hash;
--   where only the letters behind the place `next` tell whether there are more, else it is empty;
--   gone are the ids that have no record
--
-- @unwaited
-- @include lib/bare
-- @include lib/page

local page, more = page_by_time(dead, '+inf', after_time, after_id, limit)
local letters, gone, room = {}, {}, tonumber(max_bytes)

local function place_of(id)
  return redis.call('ZSCORE', dead, id) .. ':' .. id
end

for _, id in ipairs(page) do
  local key = message_key(base, topic, id)
  local fields = redis.call('HMGET', key, 'run', 'size')
  if fields[1] then
    local bare = is_bare(base, fields[1])
    room = room - (bare and 0 or tonumber(fields[2] or '0'))
    if room < 0 and #letters > 0 then
      return { 'OK', '1', letters, '', gone }
    end
    letters[#letters + 1] = { place_of(id), message_row(base, key, bare) }
  else
    gone[#gone + 1] = id
  end
end
if more ~= '' and #gone > 0 then
  return { 'OK', '', letters, place_of(page[#page]), gone }
end
return { 'OK', more, letters, '', gone }
