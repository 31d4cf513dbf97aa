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

-- The reply that refuses an event of a step of this status, or nil where the step may still change.
local function refuse_step(status)
  if not status then
    return { 'STEP_NOT_FOUND' }
  elseif is_terminal(status) then
    return { 'STEP_TERMINAL', status }
  end
end

-- The statuses of a step that may still change and of its run; or nil and the reply that refuses
-- the event. On a finished run only the outcome of a running step is recorded, whatever it is.
local function open_step(run, step)
  local status = redis.call('HGET', step, 'status')
  local refusal = refuse_step(status)
  if refusal then
    return nil, refusal
  end
  local run_status = redis.call('HGET', run, 'status')
  if not run_status then
    -- The run is being removed, and this step's turn has not come yet.
    return nil, { 'STEP_NOT_FOUND' }
  elseif status ~= 'running' and is_terminal(run_status) then
    return nil, { 'RUN_EXPIRED', run_status }
  end
  return status, nil, run_status
end

-- What an event of an older step answers. `slot` is its own: the caller knows its payload.
local function step_reply(keys, slot, at, sent, resolve_data)
  return { 'OK', slot, at, sent, entity_row(keys.step, keys.payloads, resolve_data, slot) }
end

-- Appends an event and changes the step with it; returns the event's slot. `changes` are pairs
-- of the step's hash; `slot_field`, if any, points at the event, also where that has no payload,
-- or the end of a step could not be told from another one's. Behind the end of a run whose user
-- data is deleted no payload is stored any more: then it points there with a minus.
local function change_step(keys, event, changes, slot_field, run_status)
  local sign = ''
  if is_terminal(run_status) and redis.call('HEXISTS', keys.run, 'expired_at') == 1 then
    event.payload, sign = '', '-'
  end
  local slot = append(keys.events, keys.payloads, event)
  if slot_field then
    changes[#changes + 1] = slot_field
    changes[#changes + 1] = sign .. slot
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

-- Begins an attempt of a step that may begin one; the slot of its event. `attempt` and `started_at`
-- are the step's until now, the latter false before its first attempt.
local function begin_attempt(keys, event, attempt, started_at)
  return change_step(keys, event, {
    'status', 'running', 'attempt', string.format('%.0f', attempt + 1),
    'started_at', started_at or event.at,
  })
end

-- Applies a step_started of a step that exists.
local function start_step(keys, event, fields)
  local written, own = remembered(keys.ops, keys.events, event.op)
  if own then
    return step_reply(keys, written, own.at, sent_along(keys.base, fields.outbox),
      fields.resolve_data)
  end
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  elseif is_terminal(status) then
    -- No work begins on a finished run, before anything else is looked at.
    return { 'RUN_EXPIRED', status }
  end
  local step = redis.call('HMGET', keys.step, 'status', 'retry_after', 'attempt', 'started_at')
  local step_refusal, retry_after = refuse_step(step[1]), step[2]
  if step_refusal then
    return step_refusal
  elseif retry_after then
    local wait = tonumber(retry_after) - tonumber(event.at)
    if wait > 0 then
      return { 'TOO_EARLY', string.format('%.0f', wait) }
    end
    redis.call('HDEL', keys.step, 'retry_after')
  end
  local slot = begin_attempt(keys, event, step[3], step[4])
  remember(keys.ops, event.op, slot)
  return step_reply(keys, slot, event.at, send_along(keys.base, event.at, fields.outbox),
    fields.resolve_data)
end

-- Applies step_retrying.
local function retry_step(keys, event, fields)
  local written, own = remembered(keys.ops, keys.events, event.op)
  if own then
    return step_reply(keys, written, own.at, sent_along(keys.base, fields.outbox),
      fields.resolve_data)
  end
  local _, refusal, run_status = open_step(keys.run, keys.step)
  if refusal then
    return refusal
  end
  local changes = { 'status', 'pending' }
  if fields.retry_after == '' then
    redis.call('HDEL', keys.step, 'retry_after')
  else
    changes[3], changes[4] = 'retry_after', fields.retry_after
  end
  local slot = change_step(keys, event, changes, 'error_slot', run_status)
  remember(keys.ops, event.op, slot, is_terminal(run_status))
  return step_reply(keys, slot, event.at, send_along(keys.base, event.at, fields.outbox),
    fields.resolve_data)
end

-- Ends a step; a live run is owed a wake then. The end that this very request has brought is
-- answered again, any other one refuses it.
local function end_step(keys, event, fields, status, slot_field)
  local _, refusal, run_status = open_step(keys.run, keys.step)
  if refusal then
    local slot = redis.call('HGET', keys.step, slot_field)
    slot = slot and string.match(slot, '%d+')
    local own = own_entry(keys.events, slot, event.op)
    if not own then
      return refusal
    end
    return step_reply(keys, slot, own.at, sent_along(keys.base, fields.outbox),
      fields.resolve_data)
  end
  local slot = change_step(keys, event, { 'status', status, 'completed_at', event.at }, slot_field,
    run_status)
  forgive_step(keys.base, keys.run_id, event.corr)
  local send = is_terminal(run_status) and send_along or send_wake_along
  return step_reply(keys, slot, event.at, send(keys.base, event.at, fields.outbox, keys.run_id),
    fields.resolve_data)
end

-- Applies step_completed.
local function complete_step(keys, event, fields)
  return end_step(keys, event, fields, 'completed', 'output_slot')
end

-- Applies step_failed, which unlike step_completed looks at the run first.
local function fail_step(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  return end_step(keys, event, fields, 'failed', 'error_slot')
end
