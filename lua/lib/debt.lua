-- @include lib/keys
-- @include lib/run

-- What keeps a run from being left behind. `owed` has the runs, and as `<run>/<step>` the steps,
-- that an event was written for without the message it needs: its writer sends the message right
-- behind, or is gone. `parked` has the live runs without any outstanding message. The sweeper
-- sees to those that have been there for an interval.

local function debt_of_step(run_id, step_id)
  return run_id .. '/' .. step_id
end

local function is_live(base, run_id)
  local status = redis.call('HGET', run_key(base, run_id), 'status')
  return status and not is_terminal(status)
end

-- A run is owed a wake, unless one lies there that was not delivered yet.
local function owe_wake(base, at, run_id)
  if redis.call('HEXISTS', run_queue_key(base, run_id), 'wake') == 0 then
    redis.call('ZADD', owed_key(base), 'NX', at, run_id)
  end
end

-- A step is owed its message, unless it has an outstanding one.
local function owe_step(base, at, run_id, step_id)
  if redis.call('HEXISTS', run_queue_key(base, run_id), 'step:' .. step_id) == 0 then
    redis.call('ZADD', owed_key(base), 'NX', at, debt_of_step(run_id, step_id))
  end
end

-- A step has its message, or needs none any more.
local function forgive_step(base, run_id, step_id)
  redis.call('ZREM', owed_key(base), debt_of_step(run_id, step_id))
end

-- The same for a step whose message has ended: only one that is not over needs another.
local function owe_open_step(base, at, run_id, step_id)
  local status = redis.call('HGET', step_key(base, run_id, step_id), 'status')
  if status and not is_terminal(status) and is_live(base, run_id) then
    owe_step(base, at, run_id, step_id)
  end
end

local function park(base, at, run_id)
  redis.call('ZADD', parked_key(base), at, run_id)
end

-- A run that was just created is parked, unless there are messages of it already.
local function park_if_idle(base, at, run_id)
  if tonumber(redis.call('HGET', run_queue_key(base, run_id), 'n') or '0') <= 0 then
    park(base, at, run_id)
  end
end
