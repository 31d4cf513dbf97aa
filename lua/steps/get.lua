-- Reads a step. That of a run which is being removed is gone, as its run is.
--
-- KEYS: run, step, payloads
-- ARGV: resolve_data
-- Returns: OK step | STEP_NOT_FOUND
--
-- @unwaited
-- @include lib/rows

if redis.call('EXISTS', run, step) < 2 then
  return { 'STEP_NOT_FOUND' }
end
return { 'OK', entity_row(step, payloads, resolve_data) }
