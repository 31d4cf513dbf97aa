-- @include lib/keys

-- The life of a run: the checks that open nearly every event, and its status indexes.

local MIN_SPEC_VERSION, MAX_SPEC_VERSION = 2, 7

-- Whether nothing more happens to a run or a step of this status; false for none at all.
local function is_terminal(status)
  return status == 'completed' or status == 'failed' or status == 'cancelled'
end

-- The run's status; or nil and the reply that refuses the event.
local function open_run(run)
  local fields = redis.call('HMGET', run, 'status', 'spec_version')
  if not fields[1] then
    return nil, { 'RUN_NOT_FOUND' }
  end
  local version = tonumber(fields[2])
  if version < MIN_SPEC_VERSION or version > MAX_SPEC_VERSION then
    return nil, { 'RUN_NOT_SUPPORTED', fields[2] }
  end
  return fields[1]
end

-- Moves a run to another status, in its hash and in the indexes by status.
local function set_status(base, run, run_id, from, to)
  local name = redis.call('HGET', run, 'workflow_name')
  redis.call('HSET', run, 'status', to)
  if from then
    redis.call('ZREM', status_key(base, from), run_id)
    redis.call('ZREM', workflow_key(base, name, from), run_id)
  end
  redis.call('ZADD', status_key(base, to), '0', run_id)
  redis.call('ZADD', workflow_key(base, name, to), '0', run_id)
end
