-- @include lib/cleaning
-- @include lib/keep_streams
-- @include lib/keys
-- @include lib/log
-- @include lib/run

-- Creates a run, pending, with its run_created event in slot 1. The caller has checked that
-- there is none. Fields that may be absent are empty then, or else stand behind a `=`. Returns `1`
-- where there are more streams than one script keeps, else empty: the caller goes on with them.
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
  if not keep_streams(fields.base, fields.run_id, '') then
    return ''
  end
  clean_later(fields.base, event.at, 'keep', fields.run_id)
  return '1'
end

-- What a repetition of that request is to know of it.
local function is_left_to_keep(base, run_id)
  return is_unclean(base, 'keep', run_id) and '1' or ''
end
