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

-- Look.
local at = now()
local state = look_at(run)

-- Refuse, unless this request itself has created the run that refuses it. One that is being removed
-- is there until nothing is left of it.
if state.status then
  local own = own_entry(events, '1', op)
  if own then
    local row, sent = read_run(run, attributes, events, resolve_data), sent_along(base, outbox)
    return { 'OK', '1', own.at, sent, row, is_left_to_keep(base, run_id) }
  end
  return { 'CONFLICT' }
end
local age = id_time ~= '' and at - id_time or 0
if age > MAX_AGE or age < -MAX_AHEAD then
  return { 'RUN_ID_AGE', at }
elseif is_removing(base, run_id) then
  return { 'CONFLICT' }
end

-- Append and create.
local keys = { run = run, attributes = attributes, events = events, payloads = payloads }
local row, hash = create_run(keys, {
  at = at, spec = spec_version, op = op, corr = correlation_id, occ = occurred_at,
  data = data, payload = payload,
}, {
  base = base, run_id = run_id, deployment_id = deployment_id, workflow_name = workflow_name,
  execution_context = execution_context, encryption_public_key = encryption_public_key,
  attributes = attribute_pairs,
})
state.status = 'pending'
local outstanding = store_new_run(base, at, run, run_id, state, '1', hash, outbox == '')
move_run(base, run_id, workflow_name, nil, 'pending')
local left = keep_streams_of_new(base, at, run_id)

-- Wake it: by the message that came along, or, without one, by the sweeper.
local sent = send_wake_along(base, at, outbox, run_id)
park_new(base, at, run_id, outstanding, outbox)
return { 'OK', '1', at, sent, { row, {}, attribute_pairs }, left }
