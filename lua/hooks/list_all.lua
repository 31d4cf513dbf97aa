-- Lists the live hooks of all runs by creation, then by hook id.
--
-- KEYS: all_hooks
-- ARGV: base, resolve_data, order, after, limit
-- Returns: OK more hooks, a hook being its member of the index, then its row
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row
-- @include lib/page

local at = now()
local members, more = page_of_some(function(place, count)
  return page_by_member({ all_hooks }, order, place, count)
end, function(member)
  local hook_id, run_id = parse_hook_member(member)
  return hook_state(base, run_id, hook_id, at)
end, function(member)
  return member
end, after, limit)
local rows = {}
for i, member in ipairs(members) do
  local hook_id, run_id = parse_hook_member(member)
  rows[i] = { member, hook_row(base, run_id, hook_id, resolve_data) }
end
return { 'OK', more, rows }
