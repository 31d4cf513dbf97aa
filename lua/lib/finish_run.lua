-- @include lib/cleaning
-- @include lib/end_hooks
-- @include lib/expire_data
-- @include lib/keys
-- @include lib/log
-- @include lib/outbox
-- @include lib/queue
-- @include lib/request
-- @include lib/rows
-- @include lib/run

-- A terminal event on a run that is over: the same request once more, or one more cancellation
-- of a cancelled run; else it is refused.
-- @deferred
local function finish_again(...)
  local keys, event, fields, status = ...
  local slot = redis.call('HGET', keys.run, 'terminal_slot')
  local own = own_entry(keys.events, slot, event.op)
  if not own then
    slot, own = remembered(keys.ops, keys.events, event.op)
  end
  local at, sent
  if own then
    at, sent = own.at, sent_along(fields.base, fields.outbox)
  elseif status ~= 'cancelled' or fields.status ~= 'cancelled' or fields.once ~= '' then
    return { 'RUN_TERMINAL', status }
  else
    slot, at = append(keys.events, keys.payloads, event), event.at
    remember(keys.ops, event.op, slot, true)
    sent = send_along(fields.base, at, fields.outbox)
  end
  return { 'OK', slot, at, sent,
    run_row(keys.run, keys.attributes, keys.payloads, fields.resolve_data, slot) }
end

-- The end of a run, shared by its three terminal events: one event, the new status, and in
-- the same instant no hook, no token and no wait of the run is left.
local function finish_run(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  if is_terminal(status) then
    return finish_again(keys, event, fields, status)
  end

  local expires = expires_at_end(keys.attributes)
  if expires then
    event.payload = ''
  end
  local slot = append(keys.events, keys.payloads, event)
  redis.call('HSET', keys.run, 'completed_at', event.at, 'updated_at', event.at,
    'terminal_slot', slot)
  if fields.slot_field and event.payload ~= '' then
    redis.call('HSET', keys.run, fields.slot_field, slot)
  end
  if fields.error_code and fields.error_code ~= '' then
    redis.call('HSET', keys.run, 'error_code', string.sub(fields.error_code, 2))
  end
  set_status(fields.base, keys.run, fields.run_id, status, fields.status)
  if end_hooks(fields.base, fields.run_id, event.at, '0') then
    clean_later(fields.base, event.at, 'hooks', fields.run_id)
  end
  redis.call('ZADD', finished_key(fields.base), event.at, fields.run_id)
  redis.call('UNLINK', keys.waits, keys.wait_states)
  if expires then
    expire_data(fields.base, event.at, keys.run, keys.payloads, fields.run_id)
  end
  redis.call('EXPIRE', keys.ops, OPS_SECONDS)
  redis.call('ZREM', owed_key(fields.base), fields.run_id)
  redis.call('ZREM', parked_key(fields.base), fields.run_id)
  local sent = send_along(fields.base, event.at, fields.outbox)
  forget_run(fields.base, fields.run_id)
  redis.pcall('PUBLISH', done_channel(fields.base, fields.run_id), '')
  return { 'OK', slot, event.at, sent,
    run_row(keys.run, keys.attributes, keys.payloads, fields.resolve_data, slot) }
end
