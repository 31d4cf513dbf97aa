-- @include lib/keys
-- @include lib/log
-- @include lib/run

-- Creates a run, pending, with its run_created event in slot 1. The caller has checked that
-- there is none. Fields that may be absent are empty then, or else stand behind a `=`.
local function create_run(keys, event, fields)
  event.type = 'run_created'
  append(keys.events, keys.payloads, event)
  local hash = {
    'deployment_id', fields.deployment_id, 'workflow_name', fields.workflow_name,
    'spec_version', event.spec, 'created_at', event.at, 'updated_at', event.at,
  }
  for _, name in ipairs({ 'execution_context', 'encryption_public_key' }) do
    if fields[name] ~= '' then
      hash[#hash + 1] = name
      hash[#hash + 1] = string.sub(fields[name], 2)
    end
  end
  if event.payload ~= '' then
    hash[#hash + 1] = 'input_slot'
    hash[#hash + 1] = '1'
  end
  redis.call('HSET', keys.run, unpack(hash))
  if #fields.attributes > 0 then
    redis.call('HSET', keys.attributes, unpack(fields.attributes))
  end
  redis.call('ZADD', runs_key(fields.base), '0', fields.run_id)
  set_status(fields.base, keys.run, fields.run_id, nil, 'pending')
  -- Streams written before their run existed were to expire; now they live with it.
  local streams = streams_key(fields.base, fields.run_id)
  for _, name in ipairs(redis.call('ZRANGE', streams, 0, -1)) do
    local stream = stream_key(fields.base, fields.run_id, name)
    if redis.call('EXISTS', stream) == 0 then
      redis.call('ZREM', streams, name)
    end
    redis.call('PERSIST', stream)
    redis.call('PERSIST', writers_key(fields.base, fields.run_id, name))
  end
  redis.call('PERSIST', streams)
end
