-- Counts the messages of a topic, and names those that were postponed longest.
--
-- KEYS: due, leased, held, dead, declined
-- ARGV: base, topic
-- Returns: OK now ready delayed leased held dead oldest_due postponed names; oldest_due is empty
--   when nothing is due, a name is since when, queue name, step name or empty
--
-- @unwaited
-- @include lib/clock
-- @include lib/declined

local NAMED = 100

local at = now()
local ready = redis.call('ZCOUNT', due, '-inf', at)
local oldest = redis.call('ZRANGE', due, '-inf', at, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
local oldest_held = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
if oldest_held and (not oldest or tonumber(oldest_held) < tonumber(oldest)) then
  oldest = oldest_held
end
local names, seen = {}, {}
for _, member in ipairs(redis.call('ZRANGE', declined, 0, NAMED - 1)) do
  local message_id, run_id = split_member(member)
  local book = open_message(base, topic, run_id, message_id)
  local message, note = read_message(book, message_id), declined_note(book, message_id)
  if message and note then
    local queue = address_of(message)
    local name = queue .. '\n' .. note.step_name
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = { note.since, queue, note.step_name }
    end
  end
end
return { 'OK', at, tostring(ready), tostring(redis.call('ZCARD', due) - ready),
  tostring(redis.call('ZCARD', leased)), tostring(redis.call('ZCARD', held)),
  tostring(redis.call('ZCARD', dead)), oldest or '', tostring(redis.call('ZCARD', declined)),
  names }
