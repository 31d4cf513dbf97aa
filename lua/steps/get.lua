-- Reads a step.
--
-- KEYS: run, payloads
-- ARGV: step_id, resolve_data
-- Returns: OK step | STEP_NOT_FOUND
--
-- @unwaited
-- @include lib/step_row

local record = redis.call('HGET', run, step_field(step_id))
return record and { 'OK', step_row(record, payloads, resolve_data) } or { 'STEP_NOT_FOUND' }
