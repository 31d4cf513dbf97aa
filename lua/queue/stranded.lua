-- Looks for runs that nobody may be seeing to: those that have been owed a message, and those that
-- have had none, for `interval` ms. Each is judged again when it is rescued. And for runs whose
-- book is to be mended: not before one that was just being created is there.
--
-- KEYS: owed, parked, lost
-- ARGV: base, interval, limit
-- Returns: OK owed parked lost; the former each a list of run, queue name last used or empty,
--   workflow, execution context, spec version, deployment and start of the run; lost a list of runs
--
-- @unwaited
-- @include lib/clock
-- @include lib/keys
-- @include lib/later

local before = later(now(), -interval)

local function describe(run_id)
  local run = redis.call('HMGET', run_key(base, run_id), 'workflow_name', 'execution_context',
    'spec_version', 'deployment_id', 'started_at')
  local queue = redis.call('HGET', run_queue_key(base, run_id), 'queue')
  return { run_id, queue or '', run[1] or '', run[2] or '', run[3] or '', run[4] or '',
    run[5] or '' }
end

local function oldest(index)
  return redis.call('ZRANGE', index, '-inf', before, 'BYSCORE', 'LIMIT', 0, limit)
end

local function describe_oldest(index)
  local runs = {}
  for i, run_id in ipairs(oldest(index)) do
    runs[i] = describe(run_id)
  end
  return runs
end

return { 'OK', describe_oldest(owed), describe_oldest(parked), oldest(lost) }
