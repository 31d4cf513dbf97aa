-- Tells whether the hook that a token is reserved for lives. With `revoke` `1` one that is neither
-- alive nor dead, because its creator has not come yet, is kept from being created under this or an
-- older number.
--
-- KEYS: run, claims
-- ARGV: base, run_id, hook_id, token_hash, number, revoke
-- Returns: LIVE | DEAD | PENDING
--
-- @include lib/clock
-- @include lib/hook

if hook_state(base, run_id, hook_id, now()) then
  -- It may have been created with another token.
  local held = redis.call('HGET', hook_key(base, run_id, hook_id), 'token_hash')
  return { held == token_hash and 'LIVE' or 'DEAD' }
end
local status = redis.call('HGET', run, 'status')
if not status or is_terminal(status)
  or redis.call('HEXISTS', claims, 'hook:' .. hook_id) == 1 then
  return { 'DEAD' }
end
local fence = 'revoked:' .. token_hash .. '/' .. hook_id
local revoked = tonumber(redis.call('HGET', claims, fence) or '0')
if revoked >= tonumber(number) then
  return { 'DEAD' }
end
if revoke == '' then
  return { 'PENDING' }
end
redis.call('HSET', claims, fence, number)
return { 'DEAD' }
