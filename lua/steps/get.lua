-- Reads a step.
--
-- KEYS: run, events
-- ARGV: step_id, resolve_data
-- Returns: OK step | STEP_NOT_FOUND
--
-- @unwaited
-- @include lib/step_row

local found = redis.call('HMGET', run, step_field(step_id), name_field(step_id), 'expired_at')
local record, name = unpack(found)
return record and { 'OK', step_row(record, name, events, found[3] and 'none' or resolve_data) }
  or { 'STEP_NOT_FOUND' }
