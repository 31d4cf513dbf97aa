-- Reads a step.
--
-- KEYS: step, payloads
-- ARGV: resolve_data
-- Returns: OK step | STEP_NOT_FOUND
--
-- @unwaited
-- @include lib/rows

local row = entity_row(step, payloads, resolve_data)
if #row[1] == 0 then
  return { 'STEP_NOT_FOUND' }
end
return { 'OK', row }
