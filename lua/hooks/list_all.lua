-- Lists the live hooks of all runs by creation, then by hook id: some of those behind `after`.
--
-- KEYS: all_hooks
-- ARGV: base, resolve_data, order, after, limit
-- Returns: OK more hooks next, a hook being its member of the index, then its row; where only the
--   hooks behind `next` tell whether there are more, else it is empty
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row
-- @include lib/page

local at = now()
local statuses = {}

-- Those that are to be deleted are many of one run.
local function status_of(run_id)
  if statuses[run_id] == nil then
    statuses[run_id] = redis.call('HGET', run_key(base, run_id), 'status')
  end
  return statuses[run_id]
end

local members, more, following = page_of_some(function(place, count)
  return page_by_member({ all_hooks }, order, place, count)
end, function(member)
  local hook_id, run_id = parse_hook_member(member)
  return judge_hook(base, run_id, hook_id, status_of(run_id), at)
end, function(member)
  return member
end, after, limit)
local rows
rows, more, following = read_rows(members, more, following, function(member)
  local hook_id, run_id = parse_hook_member(member)
  return { member, hook_row(base, run_id, hook_id, resolve_data) }
end)
return { 'OK', more, rows, following }
