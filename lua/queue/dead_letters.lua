-- Lists the dead letters of a topic by the time of their death, then by id.
--
-- `after_time` and `after_id` are the place behind which the page begins, or empty. It ends before
-- the letter with which it would have more than `max_bytes` of content, but for the first one.
-- Large headers and bodies are not in the answer.
--
-- KEYS: dead
-- ARGV: base, topic, after_time, after_id, limit, max_bytes
-- Returns: OK more letters next gone, a letter being `<time>:<id>`, run or empty, envelope, state,
--   last error or empty, name of its step where its content is not shown, else empty; where only
--   the letters behind the place `next` tell whether there are more, else it is empty; gone are
--   members that have no record
--
-- @unwaited
-- @include lib/page
-- @include lib/queue

-- In order `0` comes right behind the `/` of a member.
local page, more_pages = page_by_time(dead, '+inf', after_time, after_id .. '0', limit)
local letters, gone, room = {}, {}, tonumber(max_bytes)

local function place_of(member)
  return redis.call('ZSCORE', dead, member) .. ':' .. split_member(member)
end

for _, member in ipairs(page) do
  local message_id, run_id = split_member(member)
  local failure = 'error:' .. message_id
  local book = open_message(base, topic, run_id, message_id)
  local message = read_message(book, message_id)
  if message then
    fetch(book, failure)
    local bare = get(book, 'bare')
    room = room - (bare and 0 or message.size)
    if room < 0 and #letters > 0 then
      return { 'OK', '1', letters, '', gone }
    end
    local envelope, text, name = message.envelope, get(book, failure) or '', ''
    if bare then
      envelope, text, name = bare_envelope(message), '', name_of_step(base, message)
    end
    letters[#letters + 1] = { place_of(member), run_id, envelope, get(book, 'state:' .. message_id),
      text, name }
  else
    gone[#gone + 1] = member
  end
end
if more_pages ~= '' and #gone > 0 then
  return { 'OK', '', letters, place_of(page[#page]), gone }
end
return { 'OK', more_pages, letters, '', gone }
