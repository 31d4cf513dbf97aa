-- @include lib/hook

local HOOKS_AT_ONCE = 100

-- Deletes hooks of a run that is over, a bounded number at a time from behind the slot `after`, and
-- keeps those that outlive it. Returns the slot to go on behind, or nil when all are seen to.
local function end_hooks(base, run_id, at, after)
  local hooks = redis.call('ZRANGE', hooks_key(base, run_id), '(' .. after, '+inf', 'BYSCORE',
    'LIMIT', 0, HOOKS_AT_ONCE, 'WITHSCORES')
  for i = 1, #hooks, 2 do
    local hook_id = hooks[i]
    if hook_state(base, run_id, hook_id, at) then
      local fields = redis.call('HMGET', hook_key(base, run_id, hook_id), 'created_at',
        'token_retention_until')
      redis.call('ZADD', retained_key(base), fields[2], hook_member(fields[1], hook_id, run_id))
    else
      remove_hook(base, run_id, hook_id)
    end
  end
  if #hooks == 2 * HOOKS_AT_ONCE then
    return hooks[#hooks]
  end
end
