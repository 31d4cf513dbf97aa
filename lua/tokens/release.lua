-- Ends a reservation: with `alive` `1` its hook was found alive, and nobody need look for it again;
-- else the record goes, if it is still the one that was found dead. An empty number is any.
--
-- KEYS: token, reservations
-- ARGV: token_hash, run_id, hook_id, number, alive
-- Returns: OK
--
-- @include lib/token

local record = redis.call('HMGET', token, 'run', 'hook', 'r')
if not record[1] then
  redis.call('ZREM', reservations, token_hash)
elseif record[1] == run_id and record[2] == hook_id and (number == '' or record[3] == number) then
  redis.call('ZREM', reservations, token_hash)
  if alive == '' then
    redis.call('DEL', token)
  end
end
return { 'OK' }
