-- Leases messages that are due, oldest first (contract, section 7).
--
-- With `serialize` `1` a run has at most one leased replay: a further one that is due is held
-- until the leased one has ended. The walk has a budget, so that a run with thousands of held
-- replays can't keep a worker from the other runs; `more` says that the budget ended it.
--
-- KEYS: due, leased, held
-- ARGV: base, topic, resend, receipt, limit, lease, serialize, max_lost
-- Returns: OK now next_due more messages, a message being id, then the pairs of its hash
--
-- @unwaited
-- @include lib/clock
-- @include lib/later
-- @include lib/lease

local SCANNED_ON_RESEND = 5000

-- What this very request has leased already, when its reply was lost. Its leases end late, so
-- they are sought from that end; what lies behind the bound waits for the end of its lease.
local function leased_before()
  local found = {}
  if resend ~= '' then
    for _, message_id in ipairs(redis.call('ZRANGE', leased, 0, SCANNED_ON_RESEND - 1, 'REV')) do
      local key = message_key(base, topic, message_id)
      local fields = redis.call('HMGET', key, 'receipt', 'due_at')
      if fields[1] == receipt then
        found[#found + 1] = { message_id, redis.call('HGETALL', key), tonumber(fields[2]) }
      end
    end
    table.sort(found, function(a, b)
      return a[3] < b[3] or a[3] == b[3] and a[1] < b[1]
    end)
  end
  return found
end

local at = now()
local before = leased_before()
if #before > 0 then
  return { 'OK', at, '', '1', before }
end
expire_leases(base, topic, at, max_lost)

local wanted = tonumber(limit)
local budget = 4 * wanted + 32
local deadline = later(at, lease)
local candidates = redis.call('ZRANGE', due, '-inf', at, 'BYSCORE', 'LIMIT', 0, budget)
local messages = {}
local seen = 0
for _, message_id in ipairs(candidates) do
  if #messages == wanted then
    break
  end
  seen = seen + 1
  local key = message_key(base, topic, message_id)
  local fields = redis.call('HMGET', key, 'run', 'kind', 'due_at')
  local run_id, kind = fields[1], fields[2]
  local bookkeeping = run_queue_key(base, run_id)
  local is_replay = kind == 'wake' or kind == 'replay'
  redis.call('ZREM', due, message_id)
  if is_replay and serialize ~= '' and redis.call('HEXISTS', bookkeeping, 'leased') == 1 then
    redis.call('ZADD', held, fields[3], message_id)
    redis.call('ZADD', held_key(base, run_id), fields[3], topic .. '/' .. message_id)
  else
    -- From its delivery on a wake absorbs no more: what is sent now, the replay may not see.
    if kind == 'wake' and redis.call('HGET', bookkeeping, 'wake') == message_id then
      redis.call('HDEL', bookkeeping, 'wake')
    end
    redis.call('ZADD', leased, deadline, message_id)
    redis.call('HINCRBY', key, 'attempt', '1')
    redis.call('HSET', key, 'receipt', receipt)
    if is_replay then
      redis.call('ZREM', owed_key(base), run_id)
      if serialize ~= '' then
        redis.call('HSET', bookkeeping, 'leased', message_id)
      end
    end
    messages[#messages + 1] = { message_id, redis.call('HGETALL', key) }
  end
end

local upcoming = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or ''
local next_lease = redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]
if next_lease and (upcoming == '' or tonumber(next_lease) < tonumber(upcoming)) then
  upcoming = next_lease
end
return { 'OK', at, upcoming, seen == budget and #messages < wanted and '1' or '', messages }
