-- Lists runs that ended at least `older_than` ms ago, by the time from which their age counts, then
-- by id; and what is left to be cleaned.
--
-- `after_time` and `after_id` are the place behind which the page begins, or empty; `older_than` is
-- empty where no run is asked for.
--
-- KEYS: finished, cleaning
-- ARGV: base, older_than, after_time, after_id, limit
-- Returns: OK more runs cleaning, a run being time, id, status
--
-- @unwaited
-- @include lib/clock
-- @include lib/keys
-- @include lib/later
-- @include lib/page

local ids, more = {}, ''
if older_than ~= '' then
  ids, more = page_by_time(finished, later(now(), -older_than), after_time, after_id, limit)
end
local runs = {}
for i, run_id in ipairs(ids) do
  runs[i] = { redis.call('ZSCORE', finished, run_id), run_id,
    redis.call('HGET', run_key(base, run_id), 'status') }
end
return { 'OK', more, runs, redis.call('ZRANGE', cleaning, 0, limit - 1) }
