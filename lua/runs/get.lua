-- Reads a run.
--
-- KEYS: run, attributes, payloads
-- ARGV: resolve_data
-- Returns: OK run | RUN_NOT_FOUND
--
-- @unwaited
-- @include lib/rows

local found = read_run(run, attributes, payloads, resolve_data)
return found and { 'OK', found } or { 'RUN_NOT_FOUND' }
