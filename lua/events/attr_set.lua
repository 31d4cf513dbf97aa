-- Merges changes into the attributes of a run (contract, section 5, Attributes).
--
-- `claims_once` is `1` for a write of the workflow's body, whose correlation id counts once;
-- writes of steps append each time. `change_triples` holds key, `set` or `remove`, value.
--
-- KEYS: run, attributes, events, payloads, claims, ops
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, data, resolve_data,
--   max_events, max_attributes, claims_once, change_triples...
-- Returns: OK slot at message run | CONFLICT | TOO_MANY_ATTRIBUTES count | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version | RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows
-- @include lib/run

-- Look.
local at = now()
local state, row = look_at_run(run, 'status')

-- The run as it is after this event.
local function reply_of(slot, time, sent)
  return { 'OK', slot, time, sent,
    run_reply(row, redis.call('HGETALL', attributes), events, resolve_data) }
end

-- Refuse, unless this request itself has brought what refuses it.
local refusal = refuse_run(state)
if refusal then
  return refusal
end
local claim = 'attr:' .. correlation_id
local claimed, own
if claims_once ~= '' then
  claimed = redis.call('HGET', claims, claim)
  own = own_entry(events, claimed, op)
else
  claimed, own = remembered(ops, events, op)
end
if own then
  return reply_of(claimed, own.at, sent_along(base, outbox))
elseif is_terminal(state.status) then
  return { 'RUN_TERMINAL', state.status }
elseif claimed then
  -- A repeated write is a repeated write even where its keys would not fit any more.
  return { 'CONFLICT' }
elseif is_full(state, max_events) then
  return { 'LOG_FULL' }
end

local set, removed = {}, {}
local count = redis.call('HLEN', attributes)
for i = 1, #change_triples, 3 do
  local key = change_triples[i]
  local exists = redis.call('HEXISTS', attributes, key)
  if change_triples[i + 1] == 'set' then
    set[#set + 1] = key
    set[#set + 1] = change_triples[i + 2]
    count = count + 1 - exists
  else
    removed[#removed + 1] = key
    count = count - exists
  end
end
if count > tonumber(max_attributes) then
  return { 'TOO_MANY_ATTRIBUTES', tostring(count) }
end

-- Append.
local slot = append(events, payloads, 'attr_set', at, spec_version, op, correlation_id,
  occurred_at, data, '')
if claims_once ~= '' then
  redis.call('HSET', claims, claim, slot)
else
  remember(ops, op, slot)
end

-- Change the attributes.
if #set > 0 then
  redis.call('HSET', attributes, unpack(set))
end
if #removed > 0 then
  redis.call('HDEL', attributes, unpack(removed))
end
change_row(row, { 'updated_at', at })
store_run(base, at, run, run_id, state, slot, 'updated_at', at)
return reply_of(slot, at, (send_along(base, at, outbox)))
