-- Creates a hook and claims its token; one that another hook holds is recorded as a conflict.
--
-- With several partitions the token is another one's matter, and is reserved there first: `phase`
-- is `check` before that, `create` behind it, with the number of the reservation as `detail`, or
-- `conflict` with the run that holds it; `identity` is what `check` has told of the run, whose id
-- another run may have by then. With one partition `phase` is empty, and this is all.
--
-- The claim `hook:<id>` is settled either way: after a conflict the same hook can't be created
-- any more, also when the token is free by then, or two rival replays could leave both
-- outcomes in one log.
--
-- KEYS: run, events, payloads, claims, hooks, hook, hook_runs, token, all_hooks
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, payload,
--   token_text, token_hash, is_webhook, is_system, retention_until, max_events, phase, detail,
--   identity, token_partition
-- Returns: OK slot at message hook context | TOKEN_TAKEN slot at message owner | CONFLICT |
--   RUN_NOT_FOUND | RUN_NOT_SUPPORTED version | RUN_TERMINAL status | LOG_FULL |
--   UNRESERVED identity | REVOKED
--
-- @include lib/clock
-- @include lib/debt
-- @include lib/hook
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows
-- @include lib/run

local claim = 'hook:' .. correlation_id

-- The hash of the hook as it is created at this time, in this slot.
local function hook_hash(at, slot)
  local hash = {
    'run_id', run_id, 'hook_id', correlation_id, 'token', token_text, 'token_hash', token_hash,
    'created_at', at, 'spec_version', spec_version, 'is_webhook', is_webhook,
    'is_system', is_system,
  }
  if retention_until ~= '' then
    hash[#hash + 1] = 'token_retention_until'
    hash[#hash + 1] = retention_until
  end
  if payload ~= '' then
    hash[#hash + 1] = 'metadata_slot'
    hash[#hash + 1] = slot
  end
  if token_partition ~= '' then
    hash[#hash + 1] = 'token_partition'
    hash[#hash + 1] = token_partition
  end
  return hash
end

-- The run that holds the token, as far as it can be told here.
local function token_owner(at)
  if phase ~= '' then
    return phase == 'conflict' and detail
  end
  local record = redis.call('HMGET', token, 'run', 'hook')
  return record[1] and hook_state(base, record[1], record[2], at) and record[1]
end

local function created_reply(slot, at, sent)
  return { 'OK', slot, at, sent, { hook_hash(at, slot), {} }, resume_context(run) }
end

-- Look.
local at = now()
local state = look_at(run)

-- Refuse, unless this request itself has brought what refuses it.
local refusal = refuse_run(state)
if refusal then
  return refusal
end
local claimed = redis.call('HGET', claims, claim)
local own = own_entry(events, claimed, op)
if own and own.owner then
  return { 'TOKEN_TAKEN', claimed, own.at, sent_along(base, outbox), own.owner }
elseif own then
  return created_reply(claimed, own.at, sent_along(base, outbox))
elseif is_terminal(state.status) then
  return { 'RUN_TERMINAL', state.status }
elseif claimed then
  return { 'CONFLICT' }
elseif is_full(state, max_events) then
  return { 'LOG_FULL' }
end

if phase ~= '' then
  local run_op = read_entry(events, '1').op
  if phase == 'check' then
    return { 'UNRESERVED', run_op }
  elseif run_op ~= identity then
    return { 'RUN_NOT_FOUND' }
  end
end
if phase == 'create' then
  -- Somebody was told that this hook, which had not come yet, never will.
  local revoked = redis.call('HGET', claims, 'revoked:' .. token_hash .. '/' .. correlation_id)
  if revoked and tonumber(revoked) >= tonumber(detail) then
    return { 'REVOKED' }
  end
end

-- Append, and change: the hook is there, or the conflict is.
local owner = token_owner(at)
if owner then
  local slot = append(events, payloads, 'hook_conflict', at, spec_version, op, correlation_id,
    occurred_at, '', '', 'token', token_text, 'owner', owner)
  redis.call('HSET', claims, claim, slot)
  store_run(base, at, run, run_id, state, slot)
  return { 'TOKEN_TAKEN', slot, at, send_along(base, at, outbox), owner }
end

local slot = append(events, payloads, 'hook_created', at, spec_version, op, correlation_id,
  occurred_at, data, payload)
redis.call('HSET', claims, claim, slot)
store_run(base, at, run, run_id, state, slot)
if phase == '' then
  redis.call('HSET', token, 'run', run_id, 'hook', correlation_id, 'at', at)
end
redis.call('HSET', hook, unpack(hook_hash(at, slot)))
redis.call('ZADD', hooks, slot, correlation_id)
redis.call('ZADD', hook_runs, at, run_id)
redis.call('ZADD', all_hooks, '0', hook_member(at, correlation_id, run_id))
return created_reply(slot, at, send_along(base, at, outbox))
