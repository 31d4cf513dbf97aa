-- @include lib/hook

local HOOKS_AT_ONCE = 100

-- A bounded number of a run's hooks from behind the slot `after`, each followed by its own slot;
-- and the slot to go on behind, or nil when these are the last.
local function hooks_behind(base, run_id, after)
  local hooks = redis.call('ZRANGE', hooks_key(base, run_id), '(' .. after, '+inf', 'BYSCORE',
    'LIMIT', 0, HOOKS_AT_ONCE, 'WITHSCORES')
  return hooks, #hooks == 2 * HOOKS_AT_ONCE and hooks[#hooks] or nil
end

-- Deletes hooks of a run that is over, each followed by its slot, and keeps those that outlive it.
-- @deferred
local function end_these_hooks(...)
  local base, run_id, at, hooks = ...
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
end

-- Does so with a bounded number of a run's hooks from behind the slot `after`. Returns the slot to
-- go on behind, or nil when all are seen to.
local function end_hooks(base, run_id, at, after)
  local hooks, following = hooks_behind(base, run_id, after)
  if #hooks > 0 then
    end_these_hooks(base, run_id, at, hooks)
  end
  return following
end

-- The latest time until which some hooks of a run that is over are kept, or 0; and the slot to go
-- on behind, or nil when all were looked at.
local function kept_by_hooks(base, run_id, after)
  local hooks, following = hooks_behind(base, run_id, after)
  local latest = 0
  for i = 1, #hooks, 2 do
    local kept_until = redis.call('HGET', hook_key(base, run_id, hooks[i]), 'token_retention_until')
    latest = math.max(latest, tonumber(kept_until or '0'))
  end
  return latest, following
end
