-- @include lib/book
-- @include lib/cleaning
-- @include lib/debt
-- @include lib/keep_streams
-- @include lib/keys
-- @include lib/log
-- @include lib/rows
-- @include lib/run

-- How many outstanding messages a run has, nil where it never had one, and its wake.
local function count_messages(base, run_id)
  local book = open_book(base, '', run_id, '')
  return tonumber(get(book, 'n') or nil), get(book, 'wake')
end

-- Creates a run, pending, with its run_created event in slot 1. The caller has checked that there
-- is none, and stores the run. Fields that may be absent are empty then, or else stand behind a
-- `=`. Returns the run's row, and what of its hash is to be stored.
-- @deferred
local function create_run(...)
  local keys, event, fields = ...
  append(keys.events, keys.payloads, 'run_created', event.at, event.spec, event.op,
    event.corr or '', event.occ or '', event.data, event.payload)
  local hash = {
    'status', 'pending', 'spec_version', event.spec, 'deployment_id', fields.deployment_id,
    'workflow_name', fields.workflow_name, 'created_at', event.at, 'updated_at', event.at,
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
  if #fields.attributes > 0 then
    redis.call('HSET', keys.attributes, unpack(fields.attributes))
  end
  redis.call('ZADD', runs_key(fields.base), '0', fields.run_id)
  local row = {}
  for place = 1, #RUN_FIELDS do
    row[place] = false
  end
  change_row(row, hash)
  return row, hash
end

-- Stores a new run, whose log ends in `slot`; without a wake it is owed one, if `needs_wake`.
-- Returns how many outstanding messages were there before it.
-- @deferred
local function store_new_run(...)
  local base, at, run, run_id, state, slot, hash, needs_wake = ...
  local outstanding, wake = count_messages(base, run_id)
  if outstanding then
    state.queued = '1'
    hash[#hash + 1] = 'queued'
    hash[#hash + 1] = '1'
  end
  if needs_wake and not wake then
    state.wake_owed = at
  end
  store_run(base, at, run, run_id, state, slot, unpack(hash))
  return outstanding
end

-- A run that was just created is parked, unless there are messages of it: `outstanding` that were
-- there before, or one that came along.
-- @deferred
local function park_new(...)
  local base, at, run_id, outstanding, outbox = ...
  if outbox ~= '' then
    outstanding = count_messages(base, run_id)
  end
  if (outstanding or 0) <= 0 then
    park(base, at, run_id)
  end
end

-- Streams written before their run existed were to expire; now they live with it. Returns `1` where
-- there are more than one script keeps, else empty: the caller goes on with them.
-- @deferred
local function keep_streams_of_new(...)
  local base, at, run_id = ...
  if not keep_streams(base, run_id, '') then
    return ''
  end
  clean_later(base, at, 'keep', run_id)
  return '1'
end

-- The reply that refuses to create a run by its start: no data came along to do so, or one of its
-- id was removed just now. Nil for no refusal.
-- @deferred
local function refuse_creation(...)
  local base, run_id, creates = ...
  return creates == '' and { 'RUN_NOT_FOUND' }
    or is_removing(base, run_id) and { 'RUN_EXPIRED', 'removed' } or nil
end

-- What is left to do of what created a run, as `keep_streams_of_new` has answered.
-- @deferred
local function is_left_to_keep(...)
  local base, run_id = ...
  return is_left(base, 'keep', run_id)
end
