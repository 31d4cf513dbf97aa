-- Lists runs by id, which is by creation: all, or those of some statuses or of a workflow. Large
-- ones are less than `limit`, and more to come.
--
-- `workflow_name` is empty, or the name behind a `=`.
--
-- KEYS: runs
-- ARGV: base, resolve_data, order, after, limit, workflow_name, statuses...
-- Returns: OK more runs, a run being id, then its row
--
-- @unwaited
-- @include lib/page
-- @include lib/rows
-- @include lib/keys

local indexes = {}
for _, status in ipairs(statuses) do
  indexes[#indexes + 1] = workflow_name == '' and status_key(base, status)
    or workflow_key(base, string.sub(workflow_name, 2), status)
end
if #indexes == 0 then
  indexes[1] = runs
end

local ids, more = page_by_member(indexes, order, after, limit)
local rows
rows, more = read_rows(ids, more, '', function(run_id)
  return { run_id, read_run(run_key(base, run_id), attributes_key(base, run_id),
    events_key(base, run_id), resolve_data) }
end)
return { 'OK', more, rows }
