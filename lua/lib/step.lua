-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
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

-- The statuses of a step that may still change and of its run; or nil and the reply that refuses
-- the event. On a finished run only the outcome of a running step is recorded, whatever it is.
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
  return status, nil, run_status
end

-- What every event of a step answers. `slot` is the event's own: the caller knows its payload.
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

-- Ends a step; a live run is owed a wake then. The end that this very request has brought is
-- answered again, any other one refuses it.
local function end_step(keys, event, status, slot_field, resolve_data, outbox)
  local _, refusal, run_status = open_step(keys.run, keys.step)
  if refusal then
    local slot = redis.call('HGET', keys.step, slot_field)
    slot = slot and string.match(slot, '%d+')
    local own = own_entry(keys.events, slot, event.op)
    if not own then
      return refusal
    end
    return step_reply(keys, slot, own.at, sent_along(keys.base, outbox), resolve_data)
  end
  local slot = change_step(keys, event, { 'status', status, 'completed_at', event.at }, slot_field,
    run_status)
  local send = is_terminal(run_status) and send_along or send_wake_along
  return step_reply(keys, slot, event.at, send(keys.base, event.at, outbox, keys.run_id),
    resolve_data)
end
