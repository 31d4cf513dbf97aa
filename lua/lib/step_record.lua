-- @include lib/keys
-- @include lib/later

-- A step is one field of its run's hash: so its events look at the step and at its run by one
-- command, and change both by one. Its name, which may be long and never changes, is another field,
-- `name:<id>`: Redis keeps a hash in less memory while no value of it is longer than 64 bytes.
-- `steps` of the hash is how many there are, and `steps:<n>` the id of the one that was created as
-- the n-th.
--
-- The record is text, fields with a space between: status by its first letter, attempt, the slots
-- of its creation, of its first start, its error and its output, spec version, when it was created,
-- then the milliseconds from there to its start, its end, its last change, the time before which it
-- must not start again, and the time since when it is owed its message. `-` is for none. The slot
-- of the first start is there where nothing but that start was before, and is how a repetition of
-- it finds itself. A slot has a minus where there is no payload: that of the creation of a step
-- without input, that of an outcome behind the end of a run whose user data is deleted.

local RECORD = '^(%l) (%d+) (%S+) (%S+) (%S+) (%S+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- A slot of a record without its minus; nil for none.
-- @deferred
local function slot_of(text)
  return string.match(text, '%d+')
end

local function step_field(step_id)
  return 'step:' .. step_id
end

local function name_field(step_id)
  return 'name:' .. step_id
end

-- How long after the creation of a step a time is, as its record has it. To make numbers of text
-- and text of numbers is what costs most about a record.
local function distance_of(created_at, time)
  if time == '' then
    return '-'
  elseif time == created_at then
    return '0'
  end
  return string.format('%.0f', time - created_at)
end

-- A step as the words of its record; its status in full.
local function words_of(record)
  local letter, attempt, slot, first, error_slot, output_slot, spec, created_at, started, completed,
    updated, retry_after, owed = string.match(record, RECORD)
  return {
    status = letter == 'p' and 'pending' or letter == 'r' and 'running'
      or letter == 'c' and 'completed' or 'failed',
    attempt = attempt, slot = slot, first = first, error_slot = error_slot,
    output_slot = output_slot, spec = spec, created_at = created_at, started = started,
    completed = completed, updated = updated, retry_after = retry_after, owed = owed,
  }
end

local function record_of(step)
  return string.sub(step.status, 1, 1) .. ' ' .. step.attempt .. ' ' .. step.slot .. ' '
    .. step.first .. ' ' .. step.error_slot .. ' ' .. step.output_slot .. ' ' .. step.spec .. ' '
    .. step.created_at .. ' ' .. step.started .. ' ' .. step.completed .. ' ' .. step.updated .. ' '
    .. step.retry_after .. ' ' .. step.owed
end

-- The time since when a step is owed its message, empty for none.
local function owed_since(step)
  return step.owed ~= '-' and later(step.created_at, step.owed) or ''
end

-- A step of a run by itself; nil for none.
local function read_step(base, run_id, step_id)
  local record = redis.call('HGET', run_key(base, run_id), step_field(step_id))
  return record and words_of(record) or nil
end
