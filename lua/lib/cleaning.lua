-- @include lib/keys

-- What a script would take too long to do to the end is gone on with piece by piece, by the sweeper
-- or by whoever called the script. `cleaning` has what is left of it. What is to be deleted
-- is no longer read by anybody.

local function clean_later(base, at, kind, run_id)
  redis.call('ZADD', cleaning_key(base), 'NX', at, kind .. '/' .. run_id)
end

-- Whether there is something left of a run's.
local function is_unclean(base, kind, run_id)
  return redis.call('ZSCORE', cleaning_key(base), kind .. '/' .. run_id)
end

-- The same as an answer tells it: `1`, or empty.
local function is_left(base, kind, run_id)
  return is_unclean(base, kind, run_id) and '1' or ''
end

-- Whether a run of this id was removed just now, and its parts are still being deleted.
local function is_removing(base, run_id)
  return is_unclean(base, 'run', run_id)
end

local function is_clean(base, kind, run_id)
  redis.call('ZREM', cleaning_key(base), kind .. '/' .. run_id)
end
