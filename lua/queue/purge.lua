-- Deletes dead letters of a topic, each by its member of the set.
--
-- KEYS: dead
-- ARGV: base, topic, resend, members...
-- Returns: OK how many of them this request has deleted
--
-- @include lib/clock
-- @include lib/dead

local at = now()
local count = 0
for _, member in ipairs(members) do
  local message_id, run_id = split_member(member)
  if redis.call('ZREM', dead, member) == 1 then
    local book = open_message(base, topic, run_id, message_id)
    local message = read_message(book, message_id)
    if message then
      forget_letter(base, at, book, message)
    else
      lose(base, topic, member)
    end
    count = count + 1
  elseif resend ~= '' and not is_stored(open_book(base, topic, run_id, message_id), message_id) then
    -- Sent again: it was there when the caller looked, and the first run has deleted it.
    count = count + 1
  end
end
store_books()
return { 'OK', tostring(count) }
