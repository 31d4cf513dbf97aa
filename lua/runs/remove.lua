-- Removes a run that ended at least `older_than` ms ago, and all that belongs to it (contract,
-- section 5, Run retention): no earlier than the last of its hooks may go.
--
-- Where it has many hooks a call looks at some of them, and the next one at those behind the slot
-- `after`: a run that is over gets no further ones. `mode` is `postpone` where a run that has to
-- wait for a hook is to be out of sight until then, and `look` where nothing is to be removed.
--
-- KEYS: run, hooks, finished
-- ARGV: base, resend, run_id, older_than, mode, after
-- Returns: OK done, `1` or empty when parts are left | MORE after | LEFT | RUN_NOT_FOUND
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
local kept_until, following = kept_by_hooks(base, run_id, after)
if kept_until > tonumber(at) then
  if mode == 'postpone' then
    redis.call('ZADD', finished, 'XX', later(kept_until, -older_than), run_id)
  end
  return { 'LEFT' }
end
if following then
  return { 'MORE', following }
end
if mode == 'look' then
  return { 'OK', '1' }
end
begin_removal(base, at, run_id)
return { 'OK', remove_parts(base, run_id) and '1' or '' }
