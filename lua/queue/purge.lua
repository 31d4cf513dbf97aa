-- Deletes dead letters of a topic.
--
-- KEYS: dead
-- ARGV: base, topic, resend, message_ids...
-- Returns: OK how many of them this request has deleted
--
-- @include lib/clock
-- @include lib/dead

local at = now()
local count = 0
for _, message_id in ipairs(message_ids) do
  if redis.call('ZREM', dead, message_id) == 1 then
    local message = load_message(message_key(base, topic, message_id))
    if message then
      forget_letter(base, at, topic, message_id, message)
    else
      lose(base, topic, message_id, true)
    end
    count = count + 1
  elseif resend ~= '' and redis.call('EXISTS', message_key(base, topic, message_id)) == 0 then
    -- Sent again: it was there when the caller looked, and the first run has deleted it.
    count = count + 1
  end
end
return { 'OK', tostring(count) }
