-- Reads a run.
--
-- KEYS: run, attributes, payloads
-- ARGV: resolve_data
-- Returns: OK run | RUN_NOT_FOUND
--
-- @unwaited
-- @include lib/rows

local row = run_row(run, attributes, payloads, resolve_data)
if #row[1] == 0 then
  return { 'RUN_NOT_FOUND' }
end
return { 'OK', row }
