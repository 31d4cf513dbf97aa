-- Reads a step.
--
-- KEYS: run, events
-- ARGV: step_id, resolve_data
-- Returns: OK step | STEP_NOT_FOUND
--
-- @unwaited
-- @include lib/step_row

local found = redis.call('HMGET', run, step_field(step_id), 'expired_at')
return found[1] and { 'OK', step_row(found[1], events, found[2] and 'none' or resolve_data) }
  or { 'STEP_NOT_FOUND' }
