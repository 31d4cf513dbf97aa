-- @include lib/log
-- @include lib/outbox
-- @include lib/rows
-- @include lib/run

-- The life of a step: creation, and the checks that open every later event of it.

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

-- The status of a step that may still change; or nil and the reply that refuses the event.
-- On a finished run only the outcome of a running step is recorded, whatever it is.
local function open_step(run, step)
  local status = redis.call('HGET', step, 'status')
  if not status then
    return nil, { 'STEP_NOT_FOUND' }
  elseif is_terminal(status) then
    return nil, { 'STEP_TERMINAL', status }
  end
  local run_status = redis.call('HGET', run, 'status')
  if status ~= 'running' and is_terminal(run_status) then
    return nil, { 'RUN_EXPIRED', run_status }
  end
  return status
end

-- Appends an event, changes the step with it, and sends the message that it brings along.
-- `changes` are pairs of the step's hash.
local function change_step(keys, event, changes, slot_field, resolve_data, outbox)
  local slot = append(keys.events, keys.payloads, event)
  redis.call('HSET', keys.step, 'updated_at', event.at, unpack(changes))
  if slot_field and event.payload ~= '' then
    redis.call('HSET', keys.step, slot_field, slot)
  elseif slot_field then
    redis.call('HDEL', keys.step, slot_field)
  end
  return { 'OK', slot, event.at, send_along(keys.base, event.at, outbox),
    entity_row(keys.step, keys.payloads, resolve_data, slot) }
end
