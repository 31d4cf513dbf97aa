-- Lists the live hooks of a run by the slots of their creation: some of those behind `after`.
--
-- KEYS: run, hooks
-- ARGV: base, run_id, resolve_data, order, after, limit
-- Returns: OK more hooks next, a hook being slot, then its row; where only the hooks behind the
--   slot `next` tell whether there are more, else it is empty
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row
-- @include lib/page

local at = now()
local status = redis.call('HGET', run, 'status')
local ids, more, following = page_of_some(function(place, count)
  return page_by_slot(hooks, order, place, count)
end, function(hook_id)
  return judge_hook(base, run_id, hook_id, status, at)
end, function(hook_id)
  return redis.call('ZSCORE', hooks, hook_id)
end, after, limit)
local rows
rows, more, following = read_rows(ids, more, following, function(hook_id)
  return { redis.call('ZSCORE', hooks, hook_id),
    hook_row(base, run_id, hook_id, resolve_data) }
end)
return { 'OK', more, rows, following }
