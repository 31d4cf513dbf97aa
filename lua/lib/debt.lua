-- @include lib/book
-- @include lib/keys
-- @include lib/run
-- @include lib/step_record

-- What keeps a run from being left behind. A run is owed a wake, or some of its steps are owed
-- their message, when an event was written without the message that it needs: its writer sends it
-- right behind, or is gone. Since when tells the field `owed` of the run, `<since> <steps>`: the
-- time of the wake that it is owed, empty for none, and how many of its steps are owed theirs;
-- since when tells the record of each. The index `owed` has the runs that are owed anything, by a
-- time that is no later than the first of these; `parked` has the live runs without any outstanding
-- message. The sweeper sees to those that have been there for an interval.

-- A run, as this script has looked at it or does now.
local function known_run(base, run_id)
  local run = run_key(base, run_id)
  return looked_at[run] or (look_at(run))
end

local function is_live(base, run_id)
  local status = known_run(base, run_id).status
  return status and not is_terminal(status)
end

-- The field `owed` of a run whose debts have changed, as it is to be stored; and enters the run
-- into the index, or takes it out.
-- @deferred
local function change_debts(...)
  local base, at, run_id, state = ...
  local wake, stored_wake = state.wake_owed, state.stored_wake
  local is_owed = wake ~= '' or state.steps_owed > 0
  if stored_wake == '' and state.stored_steps == 0 then
    redis.call('ZADD', owed_key(base), at, run_id)
  elseif not is_owed then
    redis.call('ZREM', owed_key(base), run_id)
  elseif stored_wake ~= '' and tonumber(stored_wake) > tonumber(at) then
    -- The sweeper left it alone for a while, which was not for what is new.
    redis.call('ZADD', owed_key(base), 'XX', 'LT', at, run_id)
  end
  state.stored_wake, state.stored_steps = wake, state.steps_owed
  return is_owed and string.format('%s %d', wake, state.steps_owed) or ''
end

-- Whether what a run is owed is other than what is stored of that.
local function has_new_debts(state)
  return state.wake_owed ~= state.stored_wake or state.steps_owed ~= state.stored_steps
end

-- Stores the debts of a run, if they have changed, and what else there is to store.
local function store_debts(base, at, run_id, state, ...)
  if has_new_debts(state) then
    local owed = change_debts(base, at, run_id, state)
    redis.call('HSET', run_key(base, run_id), 'owed', owed, ...)
  elseif select('#', ...) > 0 then
    redis.call('HSET', run_key(base, run_id), ...)
  end
end

-- Stores what an event changes of its run, by one command: its debts, the length of its log, which
-- `slot` ends, and further fields.
local function store_run(base, at, run, run_id, state, slot, ...)
  state.length = tonumber(slot)
  if has_new_debts(state) then
    local owed = change_debts(base, at, run_id, state)
    redis.call('HSET', run, 'length', slot, 'owed', owed, ...)
  else
    redis.call('HSET', run, 'length', slot, ...)
  end
end

-- Whether there is a wake of the run that was not delivered yet.
-- @deferred
local function has_wake(...)
  local base, run_id = ...
  return get(open_book(base, '', run_id, ''), 'wake')
end

-- Notes that a run is owed a wake, to be stored by the caller; unless one lies there already.
local function note_wake(base, at, run_id, state)
  local is_there = state.wake_owed ~= ''
  if state.queued and not is_there then
    is_there = has_wake(base, run_id)
  end
  if not is_there then
    state.wake_owed = at
  end
end

-- A run is owed a wake from now on.
-- @deferred
local function owe_wake(...)
  local base, at, run_id = ...
  local state = known_run(base, run_id)
  note_wake(base, at, run_id, state)
  store_debts(base, at, run_id, state)
end

-- A run is owed no wake any more: a replay begins now, or will at once.
local function forgive_wake(base, at, run_id)
  local state = known_run(base, run_id)
  if state.wake_owed ~= '' then
    state.wake_owed = ''
    store_debts(base, at, run_id, state)
  end
end

-- @deferred
local function finds_message(...)
  local base, run_id, step_id = ...
  local place = 'step:' .. step_id
  return get(open_book(base, '', run_id, '', place), place)
end

-- Whether a step has an outstanding message.
local function has_message(base, run_id, state, step_id)
  if state.queued then
    return finds_message(base, run_id, step_id)
  end
  return false
end

-- Notes that a new step is owed its message, to be stored by the caller; unless it was sent before.
local function note_step(base, run_id, state, step_id, step)
  if not has_message(base, run_id, state, step_id) then
    step.owed, state.steps_owed = '0', state.steps_owed + 1
  end
end

-- A step that is not over is owed its message from now on, unless it has an outstanding one.
-- @deferred
local function owe_open_step(...)
  local base, at, run_id, step_id = ...
  local state = known_run(base, run_id)
  local step = is_live(base, run_id) and read_step(base, run_id, step_id)
  if step and not is_terminal(step.status) and step.owed == '-'
    and not has_message(base, run_id, state, step_id) then
    step.owed = distance_of(step.created_at, at)
    state.steps_owed = state.steps_owed + 1
    store_debts(base, at, run_id, state, step_field(step_id), record_of(step))
  end
end

-- A step has its message now.
local function forgive_step(base, at, run_id, step_id, step)
  if step and step.owed ~= '-' then
    local state = known_run(base, run_id)
    step.owed = '-'
    -- The end of a run leaves it owed nothing, and the records of its steps as they are.
    state.steps_owed = math.max(0, state.steps_owed - 1)
    store_debts(base, at, run_id, state, step_field(step_id), record_of(step))
  end
end

-- Counts the time of what a run is owed from now on: of a wake, and of the message of one step.
local function restart_debts(base, at, run_id, step_id)
  local state = known_run(base, run_id)
  if state.wake_owed ~= '' then
    state.wake_owed = at
    store_debts(base, at, run_id, state)
  end
  local step = step_id and read_step(base, run_id, step_id)
  if step and step.owed ~= '-' then
    step.owed = distance_of(step.created_at, at)
    redis.call('HSET', run_key(base, run_id), step_field(step_id), record_of(step))
  end
end

local function park(base, at, run_id)
  redis.call('ZADD', parked_key(base), at, run_id)
end
