-- @include lib/log
-- @include lib/run

-- Entities as replies: what is stored of them, and the payloads that its slots point at.

-- The fields of a run that its readers get, in this order, and the place of each.
local RUN_FIELDS = {
  'status', 'spec_version', 'deployment_id', 'workflow_name', 'created_at', 'started_at',
  'completed_at', 'updated_at', 'expired_at', 'error_code', 'encryption_public_key',
  'execution_context', 'input_slot', 'output_slot', 'error_slot',
}
local RUN_PLACES = {
  status = 1, spec_version = 2, deployment_id = 3, workflow_name = 4, created_at = 5,
  started_at = 6, completed_at = 7, updated_at = 8, expired_at = 9, error_code = 10,
  encryption_public_key = 11, execution_context = 12, input_slot = 13, output_slot = 14,
  error_slot = 15,
}

-- A run as its own events look at it, its fields, and one more.
local function look_at_run(run, field)
  local found = { look_at(run, field, unpack(RUN_FIELDS)) }
  return found[1], { unpack(found, 3, #RUN_FIELDS + 2) }, found[2]
end

-- Changes fields of a run that was read: names and values in turn, as they are stored.
local function change_row(row, changes)
  for i = 1, #changes, 2 do
    row[RUN_PLACES[changes[i]]] = changes[i + 1]
  end
end

-- A run's reply, of its fields and attributes: { fields, payloads, attributes }.
local function run_reply(row, attributes, events, resolve_data, own)
  local slots = resolve_data == 'all' and { unpack(row, RUN_PLACES.input_slot, #RUN_FIELDS) } or {}
  return { row, resolve(events, slots, own), attributes }
end

-- The same of a run that was not looked at before; nil for none.
local function read_run(run, attributes, events, resolve_data)
  local row = redis.call('HMGET', run, unpack(RUN_FIELDS))
  if row[1] then
    return run_reply(row, redis.call('HGETALL', attributes), events, resolve_data)
  end
end

-- A hook's reply: { hash, payloads }. Of a run whose user data is deleted it has none.
local function hook_entity(key, run, events, resolve_data)
  local hash = redis.call('HGETALL', key)
  local slots = {}
  for i = 1, resolve_data == 'all' and #hash or 0, 2 do
    if hash[i] == 'metadata_slot' and redis.call('HEXISTS', run, 'expired_at') == 0 then
      slots[1] = hash[i + 1]
    end
  end
  return { hash, resolve(events, slots) }
end

-- What a hook mirrors of its run, for whoever resumes it. A run never changes these fields.
local function resume_context(run)
  return redis.call(
    'HMGET', run, 'deployment_id', 'workflow_name', 'spec_version',
    'encryption_public_key', 'execution_context')
end
