-- Deletes dead letters of a topic, the oldest first, a bounded number at a time.
--
-- KEYS: dead
-- ARGV: base, topic, limit
-- Returns: OK count
--
-- @include lib/dead

local letters = redis.call('ZPOPMIN', dead, limit)
for i = 1, #letters, 2 do
  local run_id = redis.call('HGET', message_key(base, topic, letters[i]), 'run')
  forget_letter(base, topic, letters[i], run_id)
end
return { 'OK', string.format('%.0f', #letters / 2) }
