-- Leases messages that are due, oldest first; behind them, those that other workers have declined
-- and this one has not (contract, section 7).
--
-- With `serialize` `1` a run has at most one leased replay: a further one that is due is held
-- until the leased one has ended. The walk has a budget, so that a run with thousands of held
-- replays can't keep a worker from the other runs; and so has what it answers: of more than
-- `max_bytes` of content a call gives only the first message. `more` says that a budget ended it.
-- A receipt begins with the worker's id, `/` behind it; `spot` is chance, from 0 to 1.
--
-- With `look` a worker that has room for more than it got sleeps: until a message wakes it, or for
-- at most so many ms. If it has not, another worker is told of what is left, or comes next.
--
-- KEYS: due, declined, leased, held
-- ARGV: base, topic, resend, receipt, limit, max_bytes, lease, serialize, max_lost, spot, look
-- Returns: OK now next_due more messages dropped asleep_until, a message being id, then the pairs
--   of its hash, then when it was due; dropped are the ids whose record was gone; asleep_until is
--   empty when the worker does not sleep
--
-- @unwaited
-- @include lib/bare
-- @include lib/clock
-- @include lib/declined
-- @include lib/later
-- @include lib/lease

local SCANNED_ON_RESEND = 5000

-- Of what a claim has leased, so that a claim that is sent again answers in the same order.
local function by_due_time(a, b)
  return a[3] < b[3] or a[3] == b[3] and a[1] < b[1]
end

-- What this very request has leased already, when its reply was lost. Its leases end late, so
-- they are sought from that end; what lies behind the bound waits for the end of its lease.
local function leased_before()
  local found = {}
  if resend ~= '' then
    for _, message_id in ipairs(redis.call('ZRANGE', leased, 0, SCANNED_ON_RESEND - 1, 'REV')) do
      local key = message_key(base, topic, message_id)
      local fields = redis.call('HMGET', key, 'receipt', 'due_at', 'run')
      if fields[1] == receipt then
        found[#found + 1] = { message_id, message_row(base, key, is_bare(base, fields[3])),
          tonumber(fields[2]) }
      end
    end
    table.sort(found, by_due_time)
  end
  return found
end

local at = now()
local before = leased_before()
if #before > 0 then
  return { 'OK', at, '', '1', before, {}, '' }
end
local messages, dropped = {}, {}
local _, next_lease = expire_leases(base, topic, at, max_lost, dropped)

local worker = worker_of(receipt)
local wanted, room = tonumber(limit), tonumber(max_bytes)
local budget = 4 * wanted + 32
local deadline = later(at, lease)
local is_over_budget = false

-- The fields of a message that a walk comes by; nil, and out of its sets, when its record is gone.
local function read_due(key, message_id)
  local fields = redis.call('HMGET', key, 'run', 'kind', 'due_at', 'size', 'postponed')
  if fields[1] then
    return {
      run = fields[1], kind = fields[2], due_at = fields[3], size = tonumber(fields[4] or '0'),
      is_postponed = fields[5],
      is_replay = fields[2] == 'wake' or fields[2] == 'replay',
    }
  end
  lose(base, topic, message_id)
  dropped[#dropped + 1] = message_id
end

-- Whether a message has to wait for a replay of its run that is leased.
local function must_wait(message)
  return message.is_replay and serialize ~= '' and named(base, message.run, 'leased') ~= nil
end

-- Leases a message, unless it is too large beside what is leased already: then that is all.
local function take(key, message_id, message)
  local bare = is_bare(base, message.run)
  room = room - (bare and 0 or message.size)
  is_over_budget = room < 0 and #messages > 0
  if is_over_budget then
    return
  end
  local bookkeeping = run_queue_key(base, message.run)
  redis.call('ZREM', due, message_id)
  if message.is_postponed then
    redis.call('ZREM', declined, message_id)
  end
  -- From its delivery on a wake absorbs no more: what is sent now, the replay may not see.
  if message.kind == 'wake' and redis.call('HGET', bookkeeping, 'wake') == message_id then
    redis.call('HDEL', bookkeeping, 'wake')
  end
  redis.call('ZADD', leased, deadline, message_id)
  redis.call('HINCRBY', key, 'attempt', '1')
  redis.call('HSET', key, 'receipt', receipt)
  if message.is_replay then
    forgive_wake(base, at, message.run)
    if serialize ~= '' then
      redis.call('HSET', bookkeeping, 'leased', message_id)
    end
  end
  messages[#messages + 1] = { message_id, message_row(base, key, bare), tonumber(message.due_at) }
end

local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local are_due = {}
if first[1] and tonumber(first[2]) <= tonumber(at) then
  are_due = redis.call('ZRANGE', due, '-inf', at, 'BYSCORE', 'LIMIT', 0, budget)
end
local seen = 0
for _, message_id in ipairs(are_due) do
  if #messages == wanted or is_over_budget then
    break
  end
  seen = seen + 1
  local key = message_key(base, topic, message_id)
  local message = read_due(key, message_id)
  if message and must_wait(message) then
    redis.call('ZREM', due, message_id)
    redis.call('ZREM', declined, message_id)
    redis.call('ZADD', held, message.due_at, message_id)
    redis.call('ZADD', held_key(base, message.run), message.due_at, topic .. '/' .. message_id)
  elseif message then
    take(key, message_id, message)
  end
end
local is_cut = seen == budget and #messages < wanted

-- Those that others have declined are due, too, some time.
if first[1] and not is_cut and not is_over_budget and #messages < wanted then
  local offered, are_more = offers(base, topic, worker, spot)
  for _, message_id in ipairs(offered) do
    if #messages == wanted or is_over_budget then
      break
    end
    local key = message_key(base, topic, message_id)
    local message = read_due(key, message_id)
    if message and not must_wait(message) then
      take(key, message_id, message)
      is_cut = are_more
    end
  end
  table.sort(messages, by_due_time)
end

if first[1] then
  first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
end
local upcoming = first[2] or ''
if #messages > 0 and (not next_lease or tonumber(deadline) < tonumber(next_lease)) then
  next_lease = deadline
end
if next_lease and (upcoming == '' or tonumber(next_lease) < tonumber(upcoming)) then
  upcoming = next_lease
end
local is_more = is_cut or is_over_budget
local asleep_until = ''
if look ~= '' and not is_more and #messages < wanted then
  asleep_until = sleep(base, topic, at, worker, look, upcoming)
elseif look ~= '' then
  leave(base, topic, at, worker, upcoming)
  if first[1] and tonumber(first[2]) > tonumber(at) then
    hint_declined(base, topic, at)
  end
end
return { 'OK', at, upcoming, is_more and '1' or '', messages, dropped, asleep_until }
