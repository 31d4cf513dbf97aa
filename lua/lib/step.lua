-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run
-- @include lib/step_record

-- What the events of steps have in common.

-- The run of a step and the step with its name, nil for none, by one command; and how many steps
-- the run has, as text.
local function look_at_step(run, step_id)
  local state, record, name, count = look_at(run, 'step:' .. step_id, 'name:' .. step_id, 'steps')
  local step = record and words_of(record) or nil
  if step then
    step.name = name
  end
  return state, step, count or '0'
end

-- A step that is created now, in this slot: pending, not yet attempted.
-- @deferred
local function new_step(at, slot, payload, spec, name)
  return {
    status = 'pending', attempt = '0', slot = (payload == '' and '-' or '') .. slot, first = '-',
    error_slot = '-', output_slot = '-', spec = spec, created_at = at, started = '-',
    completed = '-', updated = '0', retry_after = '-', owed = '-', name = name,
  }
end

-- Stores a new step, where its run had `count` before, with the length of the log, which `slot`
-- ends.
-- @deferred
local function store_new_step(base, at, run, run_id, state, slot, count, step_id, step, record)
  local place = string.format('%d', count + 1)
  store_run(base, at, run, run_id, state, slot, 'step:' .. step_id, record,
    'name:' .. step_id, step.name, 'steps', place, 'steps:' .. place, step_id)
end

-- The reply that refuses an outcome of a step, or nil where it is recorded: on a finished run only
-- that of a running step is, whatever it is.
local function refuse_outcome(state, step)
  if not step then
    return { 'STEP_NOT_FOUND' }
  elseif is_terminal(step.status) then
    return { 'STEP_TERMINAL', step.status }
  elseif step.status ~= 'running' and is_terminal(state.status) then
    return { 'RUN_EXPIRED', state.status }
  end
end

-- Ends a step. It needs no message any more, and its run, where it goes on, a wake: unless one
-- comes along, which is seen to when that is sent.
local function end_step(base, at, run_id, state, step, status, outbox)
  step.updated = distance_of(step.created_at, at)
  step.status, step.completed = status, step.updated
  if not is_terminal(state.status) then
    if step.owed ~= '-' then
      step.owed, state.steps_owed = '-', state.steps_owed - 1
    end
    if outbox == '' then
      note_wake(base, at, run_id, state)
    end
  end
end

-- What an event of a step answers: the step's record, payloads but the event's own, in `slot`,
-- and its name; no payloads of a run whose user data is deleted.
local function step_reply(events, state, step, record, slot, at, sent, resolve_data)
  local found = resolve_data == 'all' and not state.expired_at
    and resolve(events, { step.slot, step.error_slot }, slot)
  return { 'OK', slot, at, sent, { record, found or {}, step.name } }
end

-- Sends what comes along with the creation of a step, which is owed its message if that is another.
-- @deferred
local function send_message_along(...)
  local base, at, outbox, run_id, step_id, step = ...
  local sent = send_along(base, at, outbox, run_id, step_id, step)
  if not has_message(base, run_id, known_run(base, run_id), step_id) then
    owe_open_step(base, at, run_id, step_id)
  end
  return sent
end

-- Sends what comes along with the end of a step. A run that has ended needs no wake.
-- @deferred
local function send_outcome_along(...)
  local base, at, outbox, run_id, state, step_id, step = ...
  if is_terminal(state.status) then
    return (send_along(base, at, outbox, run_id, step_id, step))
  end
  return send_wake_along(base, at, outbox, run_id, step_id, step)
end

-- Notes the request of an event that a step may have many of, with what later ones change.
-- @deferred
local function remember_attempt(...)
  local ops, op, slot, step, is_over = ...
  remember(ops, op, slot .. ' ' .. step.attempt .. ' ' .. step.error_slot, is_over)
end

-- The slot and the entry that such a request has written, with the step's attempt and the slot of
-- its error at that time; nil for none.
-- @deferred
local function remembered_attempt(...)
  local ops, events, op = ...
  local slot, own, rest = remembered(ops, events, op)
  if own then
    return slot, own, string.match(rest, '^(%d+) (%-?%d*)$')
  end
end

-- The answer of an event that an earlier run of the same request has written at a time: the step as
-- it was right after that.
-- @deferred
local function answer_as_it_was(...)
  local base, outbox, events, state, step, slot, at, resolve_data, status, attempt, error_slot,
    retry_after = ...
  step.status, step.updated, step.attempt = status, distance_of(step.created_at, at), attempt
  step.error_slot = error_slot == '' and '-' or error_slot
  step.completed, step.output_slot = '-', '-'
  step.retry_after = distance_of(step.created_at, retry_after)
  return step_reply(events, state, step, record_of(step), slot, at, sent_along(base, outbox),
    resolve_data)
end

-- The same of an event that has ended its step, in the slot `ended`; nil where it was another
-- request that did, or none.
-- @deferred
local function answer_end_again(...)
  local base, outbox, events, op, state, step, ended, resolve_data = ...
  local slot = ended and slot_of(ended)
  local own = own_entry(events, slot, op)
  return own and step_reply(events, state, step, record_of(step), slot, own.at,
    sent_along(base, outbox), resolve_data)
end
