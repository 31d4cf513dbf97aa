-- Entities as replies: the hash as it is stored, and the payloads that its slots point at.

local function is_payload_slot(name)
  return name == 'input_slot' or name == 'output_slot' or name == 'error_slot'
    or name == 'metadata_slot'
end

-- The payloads of slots, false for none, as slot, bytes, slot, bytes. `own` is the slot of the
-- event that the caller just sent, whose payload it knows.
local function resolve(payloads, slots, own)
  local wanted = {}
  for _, slot in ipairs(slots) do
    if slot and slot ~= own then
      wanted[#wanted + 1] = slot
    end
  end
  local found = {}
  if #wanted > 0 then
    local values = redis.call('HMGET', payloads, unpack(wanted))
    for i, slot in ipairs(wanted) do
      if values[i] then
        found[#found + 1] = slot
        found[#found + 1] = values[i]
      end
    end
  end
  return found
end

-- An entity's reply: { hash, payloads }.
local function entity_row(key, payloads, resolve_data, own)
  local hash = redis.call('HGETALL', key)
  if resolve_data ~= 'all' then
    return { hash, {} }
  end
  local slots = {}
  for i = 1, #hash, 2 do
    if is_payload_slot(hash[i]) then
      slots[#slots + 1] = hash[i + 1]
    end
  end
  return { hash, resolve(payloads, slots, own) }
end

-- A run's reply: { hash, payloads, attributes }.
local function run_row(run, attributes, payloads, resolve_data, own)
  local row = entity_row(run, payloads, resolve_data, own)
  row[3] = redis.call('HGETALL', attributes)
  return row
end

-- What a hook mirrors of its run, for whoever resumes it. A run never changes these fields.
local function resume_context(run)
  return redis.call(
    'HMGET', run, 'deployment_id', 'workflow_name', 'spec_version',
    'encryption_public_key', 'execution_context')
end
