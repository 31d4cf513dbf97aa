-- Reserves a token for a hook that is about to be created in another partition; with a record that
-- is seen to be dead, in its place.
--
-- KEYS: token, numbers, reservations
-- ARGV: token_hash, op, run_id, hook_id, dead_run, dead_hook, dead_number
-- Returns: OK number | HELD run hook number age
--
-- @include lib/clock
-- @include lib/token

local at = now()
local record = redis.call('HMGET', token, 'run', 'hook', 'r', 'at', 'op')
if record[5] == op then
  return { 'OK', record[3] }
end
local is_free = not record[1] or record[1] == run_id and record[2] == hook_id
  or dead_run ~= '' and is_same(token, dead_run, dead_hook, dead_number)
if not is_free then
  return { 'HELD', record[1], record[2], record[3],
    string.format('%.0f', tonumber(at) - tonumber(record[4])) }
end
return { 'OK', write_record(token, numbers, reservations, token_hash, op, run_id, hook_id,
  at) }
