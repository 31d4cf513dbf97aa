-- Ends a reservation: with `alive` `1` its hook was found alive, and nobody need look for it again;
-- else the record goes, if it is still the one that was found dead.
--
-- KEYS: token, reservations
-- ARGV: token_hash, run_id, hook_id, number, alive
-- Returns: OK
--
-- @include lib/token

if redis.call('EXISTS', token) == 0 then
  redis.call('ZREM', reservations, token_hash)
elseif is_same(token, run_id, hook_id, number) then
  redis.call('ZREM', reservations, token_hash)
  if alive == '' then
    redis.call('DEL', token)
  end
end
return { 'OK' }
