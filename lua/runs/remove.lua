-- Removes a run that ended at least `older_than` ms ago, and all that belongs to it (contract,
-- section 5, Run retention): no earlier than the last of its hooks may go.
--
-- With `postpone` `1` a run that has to wait for a hook is out of the sweeper's sight until then.
--
-- KEYS: run, hooks, finished
-- ARGV: base, resend, run_id, older_than, postpone
-- Returns: OK done, `1` or empty when parts are left | LEFT | RUN_NOT_FOUND
--
-- @include lib/clock
-- @include lib/later
-- @include lib/remove_run

local fields = redis.call('HMGET', run, 'status', 'completed_at')
if not fields[1] then
  if is_removing(base, run_id) then
    return { 'OK', '' }
  end
  return { resend ~= '' and 'OK' or 'RUN_NOT_FOUND', '1' }
end
local at = now()
if not is_terminal(fields[1]) or tonumber(fields[2]) > tonumber(at) - tonumber(older_than) then
  return { 'LEFT' }
end
local kept_until = 0
for _, hook_id in ipairs(redis.call('ZRANGE', hooks, 0, -1)) do
  local until_time = redis.call('HGET', hook_key(base, run_id, hook_id), 'token_retention_until')
  kept_until = math.max(kept_until, tonumber(until_time or '0'))
end
if kept_until > tonumber(at) then
  if postpone ~= '' then
    redis.call('ZADD', finished, 'XX', later(kept_until, -older_than), run_id)
  end
  return { 'LEFT' }
end
begin_removal(base, at, run_id)
return { 'OK', remove_parts(base, run_id) and '1' or '' }
