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
--   RUNNING slot at message run | RUN_NOT_FOUND |
--   RUN_NOT_SUPPORTED version | RUN_EXPIRED status
--
-- @include lib/cleaning
-- @include lib/clock
-- @include lib/create_run
-- @include lib/debt
-- @include lib/outbox
-- @include lib/request
-- @include lib/rows

local status, refusal = open_run(run)
local at = now()
local started = status and status ~= 'pending' and redis.call('HGET', run, 'started_slot')
local own = own_entry(events, started, op)
if own then
  return { 'OK', started, own.at, sent_along(base, outbox),
    run_row(run, attributes, payloads, resolve_data), is_left_to_keep(base, run_id) }
end
local left = ''
if refusal and (refusal[1] ~= 'RUN_NOT_FOUND' or creates == '') then
  return refusal
elseif refusal and is_removing(base, run_id) then
  return { 'RUN_EXPIRED', 'removed' }
elseif refusal then
  local keys = { run = run, attributes = attributes, events = events, payloads = payloads }
  left = create_run(keys, {
    at = at, spec = spec_version, op = op, data = data, payload = payload,
  }, {
    base = base, run_id = run_id, deployment_id = deployment_id, workflow_name = workflow_name,
    execution_context = execution_context, encryption_public_key = encryption_public_key,
    attributes = attribute_pairs,
  })
  status = 'pending'
elseif is_terminal(status) then
  return { 'RUN_EXPIRED', status }
elseif status == 'running' then
  return { 'RUNNING', started, at, send_along(base, at, outbox),
    run_row(run, attributes, payloads, resolve_data) }
end

local slot = append(events, payloads, {
  type = 'run_started', at = at, spec = spec_version, op = op, corr = correlation_id,
  occ = occurred_at,
})
redis.call('HSET', run, 'started_at', at, 'updated_at', at, 'started_slot', slot)
set_status(base, run, run_id, status, 'running')
local sent = send_along(base, at, outbox)
if refusal then
  park_if_idle(base, at, run_id)
end
return { 'OK', slot, at, sent, run_row(run, attributes, payloads, resolve_data), left }
