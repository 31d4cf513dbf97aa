-- Lists the live hooks of a run by the slots of their creation.
--
-- KEYS: hooks
-- ARGV: base, run_id, resolve_data, order, after, limit
-- Returns: OK more hooks, a hook being slot, then its row
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row
-- @include lib/page

local at = now()
local ids, more = page_of_some(function(place, count)
  return page_by_slot(hooks, order, place, count)
end, function(hook_id)
  return hook_state(base, run_id, hook_id, at)
end, function(hook_id)
  return redis.call('ZSCORE', hooks, hook_id)
end, after, limit)
local rows = {}
for i, hook_id in ipairs(ids) do
  rows[i] = { redis.call('ZSCORE', hooks, hook_id),
    hook_row(base, run_id, hook_id, resolve_data) }
end
return { 'OK', more, rows }
