-- Reads the live hook that holds a token.
--
-- KEYS: token
-- ARGV: base, resolve_data
-- Returns: OK hook | HOOK_NOT_FOUND
--
-- @unwaited
-- @include lib/hook_row

local owner = redis.call('HMGET', token, 'run', 'hook')
local row = owner[1] and hook_row(base, owner[1], owner[2], resolve_data)
if not row then
  return { 'HOOK_NOT_FOUND' }
end
return { 'OK', row }
