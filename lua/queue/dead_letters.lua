-- Lists the dead letters of a topic by the time of their death, then by id.
--
-- `after_time` and `after_id` are the place behind which the page begins, or empty. Of more than
-- `max_bytes` of content a page has only the first letter.
--
-- KEYS: dead
-- ARGV: base, topic, after_time, after_id, limit, max_bytes
-- Returns: OK more letters dropped, a letter being `<time>:<id>`, then the pairs of its hash;
--   dropped are the ids whose record was gone
--
-- @unwaited
-- @include lib/bare
-- @include lib/page

local dropped = {}

-- A page of letters; nil where an id had no record any more, which is out of the set then.
local function whole_page()
  local page, more = page_by_time(dead, '+inf', after_time, after_id, limit)
  local letters, room = {}, tonumber(max_bytes)
  local before = #dropped
  for _, id in ipairs(page) do
    local key = message_key(base, topic, id)
    local run_id = redis.call('HGET', key, 'run')
    if not run_id then
      redis.call('ZREM', dead, id)
      dropped[#dropped + 1] = id
    elseif #dropped == before and more ~= 'full' then
      local bare = is_bare(base, run_id)
      room = room - size_of(key, bare)
      if room < 0 and #letters > 0 then
        more = 'full'
      else
        letters[#letters + 1] = { redis.call('ZSCORE', dead, id) .. ':' .. id,
          message_row(base, key, bare) }
      end
    end
  end
  if #dropped == before then
    return letters, more
  end
end

local letters, more
repeat
  letters, more = whole_page()
until letters
return { 'OK', more == 'full' and '1' or more, letters, dropped }
