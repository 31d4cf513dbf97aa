-- Deletes hooks that have outlived their run for as long as they were to, a bounded number at a
-- time.
--
-- KEYS: retained
-- ARGV: base, limit
-- Returns: OK count
--
-- @unwaited
-- @include lib/clock
-- @include lib/hook

local members = redis.call('ZRANGE', retained, '-inf', now(), 'BYSCORE', 'LIMIT', 0, limit)
for _, member in ipairs(members) do
  local hook_id, run_id = parse_hook_member(member)
  remove_hook(base, run_id, hook_id)
end
return { 'OK', tostring(#members) }
