-- Reads the live hook that holds a token.
--
-- KEYS: token
-- ARGV: base, resolve_data
-- Returns: OK hook | HOOK_NOT_FOUND
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row

local owner = redis.call('HMGET', token, 'run', 'hook')
if not owner[1] or not hook_state(base, owner[1], owner[2], now()) then
  return { 'HOOK_NOT_FOUND' }
end
return { 'OK', hook_row(base, owner[1], owner[2], resolve_data) }
