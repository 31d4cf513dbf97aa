-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run

-- Waits of a run: a sorted set of their ids by creation, and one hash with their states, so
-- that the end of a run drops them all at once however many there are.

local WAIT_STATE = '^(%a+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- A wait's state as it is stored: status, times in ms and spec version; `-` for none.
local function pack_wait(wait)
  return table.concat({
    wait.status, wait.created_at, wait.updated_at, wait.resume_at, wait.completed_at or '-',
    wait.spec_version,
  }, ' ')
end

local function unpack_wait(state)
  local status, created_at, updated_at, resume_at, completed_at, spec_version =
    string.match(state, WAIT_STATE)
  return {
    status = status, created_at = created_at, updated_at = updated_at, resume_at = resume_at,
    completed_at = completed_at, spec_version = spec_version,
  }
end

-- Stores the state of a wait with its event. The request remembers that state, too, which goes with
-- the run.
local function store_wait(keys, event, fields, wait)
  local slot = append(keys.events, keys.payloads, event)
  local state = pack_wait(wait)
  redis.call('HSET', keys.wait_states, event.corr, state)
  remember(keys.ops, event.op, slot .. ' ' .. state)
  return { 'OK', slot, event.at, (send_along(keys.base, event.at, fields.outbox)), state }
end

-- Applies wait_created.
local function add_wait(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  local written, own, noted = remembered(keys.ops, keys.events, event.op)
  if own then
    return { 'OK', written, own.at, sent_along(keys.base, fields.outbox), noted }
  elseif is_terminal(status) then
    return { 'RUN_TERMINAL', status }
  elseif redis.call('HEXISTS', keys.wait_states, event.corr) == 1 then
    return { 'CONFLICT' }
  elseif is_full(keys.events, fields.max_events) then
    return { 'LOG_FULL' }
  end
  local reply = store_wait(keys, event, fields, {
    status = 'waiting', created_at = event.at, updated_at = event.at,
    resume_at = fields.resume_at, spec_version = event.spec,
  })
  redis.call('ZADD', keys.waits, reply[2], event.corr)
  return reply
end

-- Applies wait_completed.
local function complete_wait(keys, event, fields)
  local status, refusal = open_run(keys.run)
  if not status then
    return refusal
  end
  local written, own, noted = remembered(keys.ops, keys.events, event.op)
  if own then
    return { 'OK', written, own.at, sent_along(keys.base, fields.outbox), noted }
  end
  -- A finished run has no waits left, so that it needs no check of its own.
  local stored = redis.call('HGET', keys.wait_states, event.corr)
  if not stored then
    return { 'WAIT_NOT_FOUND' }
  end
  local wait = unpack_wait(stored)
  if wait.status == 'completed' then
    return { 'CONFLICT' }
  end
  wait.status, wait.completed_at, wait.updated_at = 'completed', event.at, event.at
  return store_wait(keys, event, fields, wait)
end
