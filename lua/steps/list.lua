-- Lists the steps of a run by the slots of their creation. Those of a run which is being removed
-- are gone, as their run is. Large ones are less than `limit`, and more to come.
--
-- KEYS: run, steps, payloads
-- ARGV: base, run_id, resolve_data, order, after, limit
-- Returns: OK more steps, a step being slot, then its row
--
-- @unwaited
-- @include lib/keys
-- @include lib/page
-- @include lib/rows

if redis.call('EXISTS', run) == 0 then
  return { 'OK', '', {} }
end
local ids, more = page_by_slot(steps, order, after, limit)
local rows
rows, more = read_rows(ids, more, '', function(step_id)
  return { redis.call('ZSCORE', steps, step_id),
    entity_row(step_key(base, run_id, step_id), payloads, resolve_data) }
end)
return { 'OK', more, rows }
