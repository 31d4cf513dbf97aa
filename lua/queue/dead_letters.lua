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

local wanted = tonumber(limit)
local ids = {}
if after_time ~= '' then
  -- Those of the same millisecond that are behind the place; a script buries a hundred at most.
  for _, id in ipairs(redis.call('ZRANGE', dead, after_time, after_time, 'BYSCORE')) do
    if id > after_id and #ids <= wanted then
      ids[#ids + 1] = id
    end
  end
end
local from = after_time == '' and '-inf' or '(' .. after_time
for _, id in ipairs(redis.call('ZRANGE', dead, from, '+inf', 'BYSCORE', 'LIMIT', 0,
  wanted + 1 - #ids)) do
  ids[#ids + 1] = id
end

local page, more = cut(ids, wanted)
local letters = {}
for i, id in ipairs(page) do
  letters[i] = { redis.call('ZSCORE', dead, id) .. ':' .. id,
    redis.call('HGETALL', message_key(base, topic, id)) }
end
return { 'OK', more, letters }
