-- Lists the waits of a run by the slots of their creation.
--
-- KEYS: waits, wait_states
-- ARGV: order, after, limit
-- Returns: OK more waits, a wait being slot, correlation id, state
--
-- @unwaited
-- @include lib/page

local ids, more = page_by_slot(waits, order, after, limit)
local rows = {}
for i, correlation_id in ipairs(ids) do
  rows[i] = { redis.call('ZSCORE', waits, correlation_id), correlation_id,
    redis.call('HGET', wait_states, correlation_id) }
end
return { 'OK', more, rows }
