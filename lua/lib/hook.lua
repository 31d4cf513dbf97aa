-- @include lib/keys
-- @include lib/run

-- Live hooks: a hash, its token's record, and the indexes that list it. Whether a hook is alive is
-- judged wherever one is looked at, by the status of its run and by its own retention: so all
-- hooks of a run that ends are gone and their tokens free in one instant, however long it takes
-- to delete them.

-- The member of the index of all hooks: creation time, hook id, run. The time is padded and the
-- id in hex, so that the order of the text is the order of creation, then of the hook id, also
-- where one id begins another.
local function hook_member(created_at, hook_id, run_id)
  local hex = string.gsub(hook_id, '.', function(character)
    return string.format('%02x', string.byte(character))
  end)
  return string.rep('0', 15 - #created_at) .. created_at .. '/' .. hex .. '/' .. run_id
end

-- Hook id and run of a member.
local function parse_hook_member(member)
  local hex, run_id = string.match(member, '^%d+/(%x*)/(.*)$')
  local hook_id = string.gsub(hex, '%x%x', function(byte)
    return string.char(tonumber(byte, 16))
  end)
  return hook_id, run_id
end

-- Whether a hook may be read, its run being of this status: the run goes on, or it has outlived it
-- and still may. The second answer is whether it may be resumed, too.
local function judge_hook(base, run_id, hook_id, status, at)
  local fields = redis.call('HMGET', hook_key(base, run_id, hook_id), 'created_at',
    'token_retention_until')
  if not fields[1] or not status then
    return false, false
  elseif not is_terminal(status) then
    return true, true
  end
  return fields[2] and tonumber(fields[2]) > tonumber(at), false
end

-- The same, whatever the status of its run.
local function hook_state(base, run_id, hook_id, at)
  local status = redis.call('HGET', run_key(base, run_id), 'status')
  return judge_hook(base, run_id, hook_id, status, at)
end

-- Deletes a hook, and its token's record.
local function remove_hook(base, run_id, hook_id)
  local hook = hook_key(base, run_id, hook_id)
  local fields = redis.call('HMGET', hook, 'token_hash', 'created_at', 'token_retention_until',
    'token_partition')
  if fields[4] then
    redis.call('ZADD', releases_key(base), '0',
      fields[4] .. '/' .. fields[1] .. '/' .. run_id .. '/' .. hook_id)
  else
    local token = token_key(base, fields[1])
    local owner = redis.call('HMGET', token, 'run', 'hook')
    -- A token that was taken over belongs to somebody else by now.
    if owner[1] == run_id and owner[2] == hook_id then
      redis.call('DEL', token)
    end
  end
  redis.call('DEL', hook)
  redis.call('ZREM', hooks_key(base, run_id), hook_id)
  redis.call('ZREM', hook_runs_key(base, hook_id), run_id)
  local member = hook_member(fields[2], hook_id, run_id)
  redis.call('ZREM', all_hooks_key(base), member)
  if fields[3] then
    redis.call('ZREM', retained_key(base), member)
    -- A finished run may have been put off for it.
    local completed_at = redis.call('HGET', run_key(base, run_id), 'completed_at')
    if completed_at then
      redis.call('ZADD', finished_key(base), 'XX', completed_at, run_id)
    end
  end
end
