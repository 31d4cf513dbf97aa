-- @include lib/cleaning
-- @include lib/debt
-- @include lib/end_hooks
-- @include lib/expire_data
-- @include lib/keys
-- @include lib/log
-- @include lib/outbox
-- @include lib/queue
-- @include lib/request
-- @include lib/rows
-- @include lib/run

local function append_end(keys, event)
  return append(keys.events, keys.payloads, event.type, event.at, event.spec, event.op, event.corr,
    event.occ, event.data, event.payload)
end

-- A terminal event on a run that is over: the same request once more, or one more cancellation
-- of a cancelled run; else it is refused.
-- @deferred
local function finish_again(...)
  local keys, event, fields, state, row, slot = ...
  local own = own_entry(keys.events, slot, event.op)
  if not own then
    slot, own = remembered(keys.ops, keys.events, event.op)
  end
  local at, sent
  if own then
    at, sent = own.at, sent_along(fields.base, fields.outbox)
  elseif state.status ~= 'cancelled' or fields.status ~= 'cancelled' or fields.once ~= '' then
    return { 'RUN_TERMINAL', state.status }
  else
    slot, at = append_end(keys, event), event.at
    remember(keys.ops, event.op, slot, true)
    store_run(fields.base, at, keys.run, fields.run_id, state, slot)
    sent = send_along(fields.base, at, fields.outbox)
  end
  return { 'OK', slot, at, sent,
    run_reply(row, redis.call('HGETALL', keys.attributes), keys.events, fields.resolve_data, slot),
    is_left(fields.base, 'log', fields.run_id) }
end

-- The value of an attribute, in the pairs of their hash.
local function value_of(attributes, name)
  for i = 1, #attributes, 2 do
    if attributes[i] == name then
      return attributes[i + 1]
    end
  end
end

-- What of a run changes with its end, which is in `slot`.
local function changes_of_end(event, fields, slot)
  local changes = { 'status', fields.status, 'completed_at', event.at, 'updated_at', event.at }
  if fields.slot_field and event.payload ~= '' then
    changes[#changes + 1] = fields.slot_field
    changes[#changes + 1] = slot
  end
  if fields.error_code and fields.error_code ~= '' then
    changes[#changes + 1] = 'error_code'
    changes[#changes + 1] = string.sub(fields.error_code, 2)
  end
  return changes
end

-- The end of a run, shared by its three terminal events: one event, the new status, and in
-- the same instant no hook, no token and no wait of the run is left.
local function finish_run(keys, event, fields)
  local base, run_id, at = fields.base, fields.run_id, event.at
  local state, row, ended = look_at_run(keys.run, 'terminal_slot')
  local refusal = refuse_run(state)
  if refusal then
    return refusal
  elseif is_terminal(state.status) then
    return finish_again(keys, event, fields, state, row, ended)
  end

  -- Without its user data the run goes on to tell what happened, but not with what.
  local attributes = redis.call('HGETALL', keys.attributes)
  local expires = value_of(attributes, '$retention') == '0'
  if expires then
    event.payload = ''
  end
  local slot = append_end(keys, event)

  local before = state.status
  state.status, state.wake_owed, state.steps_owed = fields.status, '', 0
  local changes = changes_of_end(event, fields, slot)
  change_row(row, changes)
  store_run(base, at, keys.run, run_id, state, slot, 'terminal_slot', slot, unpack(changes))
  move_run(base, run_id, row[RUN_PLACES.workflow_name], before, fields.status)
  if end_hooks(base, run_id, at, '0') then
    clean_later(base, at, 'hooks', run_id)
  end
  redis.call('ZADD', finished_key(base), at, run_id)
  redis.call('UNLINK', keys.waits, keys.wait_states)
  if expires then
    -- What comes along is sent to a run without user data.
    state.expired_at = at
    expire_data(base, at, keys.run, keys.payloads, run_id)
    change_row(row, { 'expired_at', at, 'input_slot', false })
  end
  redis.call('EXPIRE', keys.ops, OPS_SECONDS)
  redis.call('ZREM', parked_key(base), run_id)

  local sent = send_along(base, at, fields.outbox)
  if state.queued then
    forget_run(base, run_id)
  end
  redis.pcall('PUBLISH', done_channel(base, run_id), '')
  return { 'OK', slot, at, sent,
    run_reply(row, attributes, keys.events, fields.resolve_data, slot), expires and '1' or '' }
end
