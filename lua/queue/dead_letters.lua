-- Lists the dead letters of a topic by the time of their death, then by id.
--
-- `after_time` and `after_id` are the place behind which the page begins, or empty.
--
-- KEYS: dead
-- ARGV: base, topic, after_time, after_id, limit
-- Returns: OK more letters, a letter being `<time>:<id>`, then the pairs of its hash
--
-- @unwaited
-- @include lib/keys
-- @include lib/page

local page, more = page_by_time(dead, '+inf', after_time, after_id, limit)
local letters = {}
for i, id in ipairs(page) do
  letters[i] = { redis.call('ZSCORE', dead, id) .. ':' .. id,
    redis.call('HGETALL', message_key(base, topic, id)) }
end
return { 'OK', more, letters }
