-- @include lib/keys

-- The life of a run: what its events look at, the checks that open nearly every one of them, and
-- its indexes by status.

local MIN_SPEC_VERSION, MAX_SPEC_VERSION = 2, 7

-- Whether nothing more happens to a run or a step of this status; false for none at all.
local function is_terminal(status)
  return status == 'completed' or status == 'failed' or status == 'cancelled'
end

-- The runs that this script has looked at, by their keys.
local looked_at = {}

-- A run as it is judged, and the values of further fields: all that an event looks at, by one
-- command. `length` is the last slot of its log, `wake_owed` and `steps_owed` are what lib/debt
-- tells of, beside what of that is stored; `queued` is there once it has had a message, and
-- `expired_at` once its user data is deleted.
local function look_at(run, ...)
  local found = redis.call('HMGET', run, 'status', 'spec_version', 'length', 'owed', 'queued',
    'expired_at', ...)
  local wake_owed, steps_owed = '', 0
  if found[4] and found[4] ~= '' then
    wake_owed, steps_owed = string.match(found[4], '^(%d*) (%d+)$')
    steps_owed = tonumber(steps_owed)
  end
  local state = {
    status = found[1], version = found[2], length = tonumber(found[3] or 0),
    wake_owed = wake_owed, steps_owed = steps_owed, stored_wake = wake_owed,
    stored_steps = steps_owed, queued = found[5], expired_at = found[6],
  }
  looked_at[run] = state
  return state, unpack(found, 7)
end

-- The reply that refuses an event of a run which is missing, or of no version that is read here;
-- nil for no refusal.
local function refuse_run(state)
  if not state.status then
    return { 'RUN_NOT_FOUND' }
  end
  local version = tonumber(state.version)
  if version < MIN_SPEC_VERSION or version > MAX_SPEC_VERSION then
    return { 'RUN_NOT_SUPPORTED', state.version }
  end
end

-- Whether the log has no room for events that begin something.
local function is_full(state, max_events)
  return max_events ~= '' and state.length >= tonumber(max_events)
end

-- Moves a run from one status, nil for a new one, to another in the indexes by status.
local function move_run(base, run_id, workflow_name, from, to)
  local all, own = status_key(base, ''), workflow_key(base, workflow_name, '')
  if from then
    redis.call('ZREM', all .. from, run_id)
    redis.call('ZREM', own .. from, run_id)
  end
  redis.call('ZADD', all .. to, '0', run_id)
  redis.call('ZADD', own .. to, '0', run_id)
end
