-- @include lib/keys

-- With several partitions the record of a token lies in the partition of the token, that of its
-- hook elsewhere. A record has run, hook, the number `r` of its reservation, which rises with each,
-- the time, and the `op` of the request; whether it is in force, the partition of its run alone can
-- tell.

-- Writes a record for a hook, under a new number.
local function write_record(token, numbers, reservations, token_hash, op, run_id, hook_id, at)
  local number = tostring(redis.call('INCR', numbers))
  redis.call('HSET', token, 'run', run_id, 'hook', hook_id, 'r', number, 'at', at, 'op', op)
  redis.call('ZADD', reservations, at, token_hash)
  return number
end

-- Whether a record is still the one that somebody has seen.
local function is_same(token, run_id, hook_id, number)
  local record = redis.call('HMGET', token, 'run', 'hook', 'r')
  return record[1] == run_id and record[2] == hook_id and record[3] == number
end
