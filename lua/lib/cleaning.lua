-- @include lib/keys

-- What a script would take too long to delete is no longer read by anybody, and deleted piece by
-- piece by the sweeper. `cleaning` has what is left of it.

local function clean_later(base, at, kind, run_id)
  redis.call('ZADD', cleaning_key(base), 'NX', at, kind .. '/' .. run_id)
end

-- Whether a run of this id was removed just now, and its parts are still being deleted.
local function is_removing(base, run_id)
  return redis.call('ZSCORE', cleaning_key(base), 'run/' .. run_id)
end

local function is_clean(base, kind, run_id)
  redis.call('ZREM', cleaning_key(base), kind .. '/' .. run_id)
end
