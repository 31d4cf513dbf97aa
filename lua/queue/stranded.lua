-- Looks for runs and steps that nobody may be seeing to: what has been owed a message, and runs
-- that have had none, for `interval` ms. Each is judged again when it is rescued.
--
-- KEYS: owed, parked
-- ARGV: base, interval, limit
-- Returns: OK owed parked, each a list of run, step or empty, queue name, workflow, step name
--
-- @unwaited
-- @include lib/clock
-- @include lib/later
-- @include lib/debt

local before = later(now(), -interval)

local function text(value)
  return value or ''
end

local function describe(run_id, step_id)
  return { run_id, step_id, text(redis.call('HGET', run_queue_key(base, run_id), 'queue')),
    text(redis.call('HGET', run_key(base, run_id), 'workflow_name')),
    text(step_id ~= '' and redis.call('HGET', step_key(base, run_id, step_id), 'step_name')) }
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
return { 'OK', debts, idle }
