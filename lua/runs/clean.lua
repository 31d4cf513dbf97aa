-- Goes on with what was too much for one script: deletes some of what is left of a run, its hooks,
-- the payloads in its log, streams, messages or parts, or keeps some of the streams that were there
-- before it.
--
-- `after` is what the last call returned, at first empty.
--
-- KEYS: run, cleaning
-- ARGV: base, kind, run_id, after
-- Returns: OK next, empty when nothing is left
--
-- @unwaited
-- @include lib/clock
-- @include lib/expire_data
-- @include lib/keep_streams
-- @include lib/remove_run

local at = now()
if not redis.call('ZSCORE', cleaning, kind .. '/' .. run_id) then
  return { 'OK', '' }
end
if kind == 'run' then
  return { 'OK', remove_parts(base, run_id) and '' or '1' }
end
local following
if kind == 'hooks' then
  following = end_hooks(base, run_id, at, after == '' and '0' or after)
elseif kind == 'messages' then
  following = strip_messages(base, run_id, after)
elseif kind == 'log' then
  following = strip_log(base, run_id)
elseif kind == 'streams' then
  following = end_streams(base, run_id, after)
elseif redis.call('HEXISTS', run, 'expired_at') == 0 then
  -- Of a run whose user data is gone there is nothing to keep but the names.
  following = keep_streams(base, run_id, after)
end
if not following then
  is_clean(base, kind, run_id)
end
return { 'OK', following or '' }
