-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows
-- @include lib/run

-- The life of a step. The functions that apply an event take the keys of run and step with `base`
-- and `run_id`, the event, and further fields: `outbox`, `resolve_data` and what the event needs.

-- Creates a step, pending, with its step_created event. The caller has checked everything.
local function create_step(keys, event, step_id, step_name)
  event.type = 'step_created'
  local slot = append(keys.events, keys.payloads, event)
  redis.call('ZADD', keys.steps, slot, step_id)
  redis.call('HSET', keys.step, 'step_id', step_id, 'step_name', step_name,
    'status', 'pending', 'attempt', '0', 'spec_version', event.spec,
    'created_at', event.at, 'updated_at', event.at)
  if event.payload ~= '' then
    redis.call('HSET', keys.step, 'input_slot', slot)
  end
  return slot
end

-- The places of a step's fields in what `read_step` gives.
local STATUS, ATTEMPT, STARTED_AT, RETRY_AFTER = 1, 2, 3, 4
local INPUT_SLOT, ERROR_SLOT, OUTPUT_SLOT = 5, 6, 10

-- What the sender of an event can't know of a step that was there before, false for what that
-- lacks. An output is added by its event: no other one is recorded behind that.
local function read_step(key)
  return redis.call('HMGET', key, 'status', 'attempt', 'started_at', 'retry_after', 'input_slot',
    'error_slot', 'step_name', 'spec_version', 'created_at')
end

-- The reply that refuses an event of a step, or nil where the step may still change.
local function refuse_step(step)
  if not step[STATUS] then
    return { 'STEP_NOT_FOUND' }
  elseif is_terminal(step[STATUS]) then
    return { 'STEP_TERMINAL', step[STATUS] }
  end
end

-- The status of the run of a step that may still change; or nil and the reply that refuses the
-- event. On a finished run only the outcome of a running step is recorded, whatever it is.
local function open_step(run, step)
  local refusal = refuse_step(step)
  if refusal then
    return nil, refusal
  end
  local run_status = redis.call('HGET', run, 'status')
  if not run_status then
    -- The run is being removed, and this step's turn has not come yet.
    return nil, { 'STEP_NOT_FOUND' }
  elseif step[STATUS] ~= 'running' and is_terminal(run_status) then
    return nil, { 'RUN_EXPIRED', run_status }
  end
  return run_status
end

-- What an event of a step that was there before answers: what of the step its sender can't know,
-- and payloads. `slot` is the event's own: its payload is known.
local function step_reply(keys, step, slot, at, sent, resolve_data)
  step[OUTPUT_SLOT] = step[OUTPUT_SLOT] or false
  local found = resolve_data == 'all'
    and resolve(keys.payloads, { step[INPUT_SLOT], step[ERROR_SLOT] }, slot) or {}
  return { 'OK', slot, at, sent, { step, found } }
end

-- Appends an event and changes the step with it; returns the event's slot. `changes` are pairs
-- of the step's hash; `outcome`, if any, is the field that points at the event, also where that has
-- no payload, or the end of a step could not be told from another one's, and `place` is where the
-- answer has it. Behind the end of a run whose user data is deleted no payload is stored any more:
-- then it points there with a minus.
local function change_step(keys, event, step, changes, run_status, outcome, place)
  local sign = ''
  if is_terminal(run_status) and redis.call('HEXISTS', keys.run, 'expired_at') == 1 then
    event.payload, sign = '', '-'
  end
  local slot = append(keys.events, keys.payloads, event)
  if outcome then
    step[place] = sign .. slot
    changes[#changes + 1] = outcome
    changes[#changes + 1] = step[place]
  end
  redis.call('HSET', keys.step, 'updated_at', event.at, unpack(changes))
  return slot
end

-- Applies step_created. Its answer has no row: the caller knows the new step.
local function add_step(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  local created = redis.call('ZSCORE', keys.steps, event.corr)
  local own = own_entry(keys.events, created, event.op)
  if own then
    return { 'OK', created, own.at, sent_along(keys.base, fields.outbox) }
  elseif is_terminal(status) then
    return { 'RUN_TERMINAL', status }
  elseif created then
    return { 'CONFLICT' }
  elseif is_full(keys.events, fields.max_events) then
    return { 'LOG_FULL' }
  end
  local slot = create_step(keys, event, event.corr, fields.step_name)
  local sent = send_along(keys.base, event.at, fields.outbox)
  owe_step(keys.base, event.at, keys.run_id, event.corr)
  return { 'OK', slot, event.at, sent }
end

-- Begins an attempt of a step that may begin one; the slot of its event.
local function begin_attempt(keys, event, step)
  step[ATTEMPT] = string.format('%.0f', step[ATTEMPT] + 1)
  step[STARTED_AT] = step[STARTED_AT] or event.at
  return change_step(keys, event, step,
    { 'status', 'running', 'attempt', step[ATTEMPT], 'started_at', step[STARTED_AT] })
end

-- Notes the request of an event that a step may have many of, with what later ones change.
local function remember_step(keys, event, step, slot, is_over)
  remember(keys.ops, event.op, slot .. ' ' .. step[ATTEMPT] .. ' ' .. (step[ERROR_SLOT] or ''),
    is_over)
end

-- What this request was answered, if it wrote its event already.
local function answered(keys, event, fields)
  local written, own, rest = remembered(keys.ops, keys.events, event.op)
  if own then
    local step = read_step(keys.step)
    local attempt, error_slot = string.match(rest, '^(%d+) (%-?%d*)$')
    step[ATTEMPT], step[ERROR_SLOT] = attempt, error_slot ~= '' and error_slot
    return step_reply(keys, step, written, own.at, sent_along(keys.base, fields.outbox),
      fields.resolve_data)
  end
end

-- Applies a step_started of a step that exists.
local function start_step(keys, event, fields)
  local again = answered(keys, event, fields)
  if again then
    return again
  end
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  elseif is_terminal(status) then
    -- No work begins on a finished run, before anything else is looked at.
    return { 'RUN_EXPIRED', status }
  end
  local step = read_step(keys.step)
  local step_refusal, retry_after = refuse_step(step), step[RETRY_AFTER]
  if step_refusal then
    return step_refusal
  elseif retry_after then
    local wait = tonumber(retry_after) - tonumber(event.at)
    if wait > 0 then
      return { 'TOO_EARLY', string.format('%.0f', wait) }
    end
    redis.call('HDEL', keys.step, 'retry_after')
  end
  local slot = begin_attempt(keys, event, step)
  remember_step(keys, event, step, slot)
  return step_reply(keys, step, slot, event.at, send_along(keys.base, event.at, fields.outbox),
    fields.resolve_data)
end

-- Applies step_retrying.
local function retry_step(keys, event, fields)
  local again = answered(keys, event, fields)
  if again then
    return again
  end
  local step = read_step(keys.step)
  local run_status, refusal = open_step(keys.run, step)
  if refusal then
    return refusal
  end
  local changes = { 'status', 'pending' }
  if fields.retry_after == '' then
    redis.call('HDEL', keys.step, 'retry_after')
  else
    changes[3], changes[4] = 'retry_after', fields.retry_after
  end
  local slot = change_step(keys, event, step, changes, run_status, 'error_slot', ERROR_SLOT)
  remember_step(keys, event, step, slot, is_terminal(run_status))
  return step_reply(keys, step, slot, event.at, send_along(keys.base, event.at, fields.outbox),
    fields.resolve_data)
end

-- Ends a step; a live run is owed a wake then. The end that this very request has brought is
-- answered again, any other one refuses it.
local function end_step(keys, event, fields, status, outcome, place)
  local step = read_step(keys.step)
  local run_status, refusal = open_step(keys.run, step)
  if refusal then
    step[place] = redis.call('HGET', keys.step, outcome)
    local slot = step[place] and string.match(step[place], '%d+')
    local own = own_entry(keys.events, slot, event.op)
    if not own then
      return refusal
    end
    return step_reply(keys, step, slot, own.at, sent_along(keys.base, fields.outbox),
      fields.resolve_data)
  end
  local slot = change_step(keys, event, step, { 'status', status, 'completed_at', event.at },
    run_status, outcome, place)
  forgive_step(keys.base, keys.run_id, event.corr)
  local send = is_terminal(run_status) and send_along or send_wake_along
  return step_reply(keys, step, slot, event.at,
    send(keys.base, event.at, fields.outbox, keys.run_id), fields.resolve_data)
end

-- Applies step_completed.
local function complete_step(keys, event, fields)
  return end_step(keys, event, fields, 'completed', 'output_slot', OUTPUT_SLOT)
end

-- Applies step_failed, which unlike step_completed looks at the run first.
local function fail_step(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  return end_step(keys, event, fields, 'failed', 'error_slot', ERROR_SLOT)
end
