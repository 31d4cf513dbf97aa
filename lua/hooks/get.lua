-- Reads a live hook by its id; without a run the newest of the runs that have one of this id.
--
-- KEYS: hook_runs
-- ARGV: base, hook_id, run_id, resolve_data
-- Returns: OK hook | HOOK_NOT_FOUND
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row

local at = now()
local owners = { run_id }
if run_id == '' then
  owners = redis.call('ZRANGE', hook_runs, 0, -1, 'REV')
end
for _, owner in ipairs(owners) do
  if hook_state(base, owner, hook_id, at) then
    return { 'OK', hook_row(base, owner, hook_id, resolve_data) }
  end
end
return { 'HOOK_NOT_FOUND' }
