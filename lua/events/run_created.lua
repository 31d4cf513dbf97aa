-- Creates a run, pending, with its first event (contract, section 5).
--
-- An id that the client made must be of now: its ULID time may lie a day in the past, which is
-- how long a start may be delayed, and five minutes ahead, for clocks that differ. `id_time` is
-- that time in ms, or empty for an id that was made by this World. A run that exists is in
-- conflict whatever its age: a resilient start may have made it of an id of any age.
--
-- `execution_context` and `encryption_public_key` are empty, or stand behind a `=`.
--
-- KEYS: run, attributes, events, payloads
-- ARGV: base, outbox, op, run_id, id_time, spec_version, occurred_at, correlation_id, data,
--   payload, deployment_id, workflow_name, execution_context, encryption_public_key, resolve_data,
--   attribute_pairs...
-- Returns: OK slot at message run left, `1` where streams are still to be kept, else empty |
--   CONFLICT | RUN_ID_AGE now
--
-- @include lib/cleaning
-- @include lib/clock
-- @include lib/create_run
-- @include lib/debt
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows

local MAX_AGE, MAX_AHEAD = 24 * 60 * 60 * 1000, 5 * 60 * 1000

local at = now()
local exists = redis.call('EXISTS', run) == 1
local own = exists and own_entry(events, '1', op)
if own then
  return { 'OK', '1', own.at, sent_along(base, outbox),
    run_row(run, attributes, payloads, resolve_data, '1'), is_left_to_keep(base, run_id) }
end
if exists then
  return { 'CONFLICT' }
end
if id_time ~= '' then
  local age = tonumber(at) - tonumber(id_time)
  if age > MAX_AGE or age < -MAX_AHEAD then
    return { 'RUN_ID_AGE', at }
  end
end
-- One that is being removed is there until nothing is left of it.
if is_removing(base, run_id) then
  return { 'CONFLICT' }
end

local keys = { run = run, attributes = attributes, events = events, payloads = payloads }
local left = create_run(keys, {
  at = at, spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
  data = data, payload = payload,
}, {
  base = base, run_id = run_id, deployment_id = deployment_id, workflow_name = workflow_name,
  execution_context = execution_context, encryption_public_key = encryption_public_key,
  attributes = attribute_pairs,
})
local sent = send_wake_along(base, at, outbox, run_id)
park_if_idle(base, at, run_id)
return { 'OK', '1', at, sent, run_row(run, attributes, payloads, resolve_data, '1'), left }
