-- Looks for runs and steps that nobody may be seeing to: what has been owed a message, and runs
-- that have had none, for `interval` ms. Each is judged again when it is rescued. And for messages
-- whose run is to be sought: not before a run that was just being created is there.
--
-- KEYS: owed, parked, lost
-- ARGV: base, interval, limit
-- Returns: OK owed parked lost; the former each a list of run, step or empty, queue name last used
--   or empty, workflow, execution context of the run, step name; lost the members of that index
--
-- @unwaited
-- @include lib/clock
-- @include lib/later
-- @include lib/debt

local before = later(now(), -interval)

local function describe(run_id, step_id)
  local run = redis.call('HMGET', run_key(base, run_id), 'workflow_name', 'execution_context')
  local queue = redis.call('HGET', run_queue_key(base, run_id), 'queue')
  local step_name = step_id ~= ''
    and redis.call('HGET', step_key(base, run_id, step_id), 'step_name')
  return { run_id, step_id, queue or '', run[1] or '', run[2] or '', step_name or '' }
end

local function oldest(index)
  return redis.call('ZRANGE', index, '-inf', before, 'BYSCORE', 'LIMIT', 0, limit)
end

local debts, idle = {}, {}
for i, member in ipairs(oldest(owed)) do
  local run_id, step_id = string.match(member, '^([^/]*)/?(.*)$')
  debts[i] = describe(run_id, step_id)
end
for i, run_id in ipairs(oldest(parked)) do
  idle[i] = describe(run_id, '')
end
return { 'OK', debts, idle, oldest(lost) }
