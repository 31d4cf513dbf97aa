-- Lists the live hooks of a run by the slots of their creation.
--
-- KEYS: hooks
-- ARGV: base, run_id, resolve_data, order, after, limit
-- Returns: OK more hooks, a hook being slot, then its row
--
-- @unwaited
-- @include lib/hook_row
-- @include lib/page

local ids, more = page_by_slot(hooks, order, after, limit)
local rows = {}
for i, hook_id in ipairs(ids) do
  rows[i] = { redis.call('ZSCORE', hooks, hook_id),
    hook_row(base, run_id, hook_id, resolve_data) }
end
return { 'OK', more, rows }
