-- Starts a run; on a run that is missing, and with the data to do so, creates it first.
--
-- `creates` is `1` when the event carries all that a run is made of: the run_created event may
-- have been lost on its way (contract, section 5, resilient start).
--
-- `execution_context` and `encryption_public_key` are empty, or stand behind a `=`.
--
-- KEYS: run, attributes, events, payloads
-- ARGV: base, outbox, op, run_id, spec_version, occurred_at, correlation_id, resolve_data,
--   creates, data, payload, deployment_id, workflow_name, execution_context,
--   encryption_public_key, attribute_pairs...
-- Returns: OK slot at message run left, `1` where streams are still to be kept, else empty |
--   RUNNING slot at message run entry, as the log has it | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version | RUN_EXPIRED status
--
-- @include lib/cleaning
-- @include lib/clock
-- @include lib/create_run
-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/rows

-- Look.
local at = now()
local state, row, started = look_at_run(run, 'started_slot')

-- Refuse, unless this request itself has started the run. One that runs already is as it is to be.
local before, refusal = state.status
local raw
if started then
  local entry
  entry, raw = read_entry(events, started)
  if entry.op == op then
    local shown = run_reply(row, redis.call('HGETALL', attributes), events, resolve_data)
    local sent = sent_along(base, outbox)
    return { 'OK', started, entry.at, sent, shown, is_left_to_keep(base, run_id) }
  end
end
if before then
  refusal = refuse_run(state) or is_terminal(before) and { 'RUN_EXPIRED', before }
else
  refusal = refuse_creation(base, run_id, creates)
end
if refusal then
  return refusal
elseif before == 'running' then
  local sent = send_along(base, at, outbox)
  return { 'RUNNING', started, at, sent,
    run_reply(row, redis.call('HGETALL', attributes), events, resolve_data), raw }
end

-- Append, and create what is missing.
local hash, left = {}, ''
if not before then
  row, hash = create_run({ attributes = attributes, events = events, payloads = payloads }, {
    at = at, spec = spec_version, op = op, data = data, payload = payload,
  }, {
    base = base, run_id = run_id, deployment_id = deployment_id, workflow_name = workflow_name,
    execution_context = execution_context, encryption_public_key = encryption_public_key,
    attributes = attribute_pairs,
  })
  left = keep_streams_of_new(base, at, run_id)
end
local slot = append(events, payloads, 'run_started', at, spec_version, op, correlation_id,
  occurred_at, '', '')

-- Change the run.
state.status = 'running'
local changes = { 'status', 'running', 'started_at', at, 'updated_at', at }
change_row(row, changes)
for _, value in ipairs(changes) do
  hash[#hash + 1] = value
end
hash[#hash + 1] = 'started_slot'
hash[#hash + 1] = slot
local outstanding
if before then
  store_run(base, at, run, run_id, state, slot, unpack(hash))
else
  outstanding = store_new_run(base, at, run, run_id, state, slot, hash)
end
move_run(base, run_id, row[RUN_PLACES.workflow_name], before, 'running')

-- Send.
local sent = send_along(base, at, outbox)
if not before then
  park_new(base, at, run_id, outstanding, outbox)
end
return { 'OK', slot, at, sent,
  run_reply(row, redis.call('HGETALL', attributes), events, resolve_data), left }
