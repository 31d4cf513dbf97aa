-- Reads a run.
--
-- KEYS: run, attributes, events
-- ARGV: resolve_data
-- Returns: OK run | RUN_NOT_FOUND
--
-- @unwaited
-- @include lib/rows

local found = read_run(run, attributes, events, resolve_data)
return found and { 'OK', found } or { 'RUN_NOT_FOUND' }
