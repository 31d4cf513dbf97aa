-- Reads a live hook by its id; without a run the newest of the runs that have one of this id.
--
-- Any number of runs may have one, and those that are over may come first: a call looks at some,
-- and the next one at those before the place that it returns, at first empty.
--
-- KEYS: hook_runs
-- ARGV: base, hook_id, run_id, resolve_data, before_time, before_run
-- Returns: OK hook | MORE before_time before_run | HOOK_NOT_FOUND
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook_row
-- @include lib/page

local RUNS_AT_ONCE = 100

local at = now()
local owners, more = { run_id }, false
if run_id == '' then
  owners, more = newest_by_time(hook_runs, before_time, before_run, RUNS_AT_ONCE)
end
for _, owner in ipairs(owners) do
  if hook_state(base, owner, hook_id, at) then
    return { 'OK', hook_row(base, owner, hook_id, resolve_data) }
  end
end
if more then
  local last = owners[#owners]
  return { 'MORE', redis.call('ZSCORE', hook_runs, last), last }
end
return { 'HOOK_NOT_FOUND' }
