-- Reads a live hook by its id; without a run the newest of the runs that have one of this id.
--
-- KEYS: hook_runs
-- ARGV: base, hook_id, run_id, resolve_data
-- Returns: OK hook | HOOK_NOT_FOUND
--
-- @unwaited
-- @include lib/hook_row

local owner = run_id
if owner == '' then
  owner = redis.call('ZRANGE', hook_runs, 0, 0, 'REV')[1]
end
local row = owner and hook_row(base, owner, hook_id, resolve_data)
if not row then
  return { 'HOOK_NOT_FOUND' }
end
return { 'OK', row }
