-- Reads a wait.
--
-- KEYS: wait_states
-- ARGV: correlation_id
-- Returns: OK state | WAIT_NOT_FOUND
--
-- @unwaited

local state = redis.call('HGET', wait_states, correlation_id)
if not state then
  return { 'WAIT_NOT_FOUND' }
end
return { 'OK', state }
