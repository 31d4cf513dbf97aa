-- Merges changes into the attributes of a run (contract, section 5, Attributes).
--
-- `claims_once` is `1` for a write of the workflow's body, whose correlation id counts once;
-- writes of steps append each time. `change_triples` holds key, `set` or `remove`, value.
--
-- KEYS: run, attributes, events, payloads, claims, ops
-- ARGV: base, outbox, op, spec_version, occurred_at, correlation_id, data, resolve_data,
--   max_events, max_attributes, claims_once, change_triples...
-- Returns: OK slot at message run | CONFLICT | TOO_MANY_ATTRIBUTES count | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version | RUN_TERMINAL status | LOG_FULL
--
-- @include lib/clock
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows
-- @include lib/run

local status, refusal = open_run(run)
if not status then
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
  return { 'OK', claimed, own.at, sent_along(base, outbox),
    run_row(run, attributes, payloads, resolve_data) }
elseif is_terminal(status) then
  return { 'RUN_TERMINAL', status }
elseif claimed then
  -- A repeated write is a repeated write even where its keys would not fit any more.
  return { 'CONFLICT' }
elseif is_full(events, max_events) then
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

local at = now()
local slot = append(events, payloads, {
  type = 'attr_set', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at, data = data,
})
if claims_once ~= '' then
  redis.call('HSET', claims, claim, slot)
else
  remember(ops, op, slot)
end
if #set > 0 then
  redis.call('HSET', attributes, unpack(set))
end
if #removed > 0 then
  redis.call('HDEL', attributes, unpack(removed))
end
redis.call('HSET', run, 'updated_at', at)
return { 'OK', slot, at, send_along(base, at, outbox),
  run_row(run, attributes, payloads, resolve_data) }
