-- @include lib/bare
-- @include lib/cleaning
-- @include lib/clock
-- @include lib/debt
-- @include lib/keys
-- @include lib/run
-- @include lib/sleepers

-- Messages: what sends, settles and releases them. A message is in exactly one of the sets
-- due, leased, held and dead. The bookkeeping hash of its run has
--   n            how many messages are outstanding (due, leased or held)
--   wake         the plain wake that is due and was never delivered: it absorbs further ones
--   leased       the one replay that a worker holds
--   step:<id>    the outstanding message of a step
--   message:<id> the topic of each of its messages, dead letters included
--   dead         how many of its messages are dead letters
--   queue        the queue name last used, for the sweeper
--   rewakes, rewoken_at, rewoken_length   of the sweeper: how often it woke the run in vain, when
--                last, and how long the log was then
-- Messages without a run have run = '' and no bookkeeping.
--
-- The record of a message may be gone, evicted or deleted by hand, while its id still lies in a set
-- or in the bookkeeping. Whoever meets such an id takes it out of its sets, and goes on; the
-- sweeper finds its run, and sets the bookkeeping right.

-- A further wake is the present one only where nothing would tell them apart: of a run whose user
-- data is deleted, nobody is shown the headers, whether they are stored still or not.
local function absorbs(base, topic, wake, message)
  local fields = redis.call('HMGET', message_key(base, topic, wake),
    'queue', 'deployment', 'headers')
  return fields[1] == message.queue and fields[2] == message.deployment
    and (fields[3] == message.headers or is_bare(base, message.run))
end

local function is_stored(base, topic, message_id)
  return redis.call('EXISTS', message_key(base, topic, message_id)) == 1
end

-- Takes a message out of all sets of its topic; whether it was a dead letter.
local function take_out(base, topic, message_id)
  for _, place in ipairs({ 'due', 'declined', 'leased', 'held' }) do
    redis.call('ZREM', topic_key(base, topic, place), message_id)
  end
  return redis.call('ZREM', topic_key(base, topic, 'dead'), message_id) == 1
end

-- Takes a message whose record is gone out of its sets. Whose it was nobody knows here, and its run
-- would count on it for ever: the sweeper seeks that run.
-- @deferred
local function lose(...)
  local base, topic, message_id, is_dead = ...
  local count = (take_out(base, topic, message_id) or is_dead) and 'dead/' or 'n/'
  redis.call('ZADD', lost_key(base), 'NX', now(), count .. message_id)
end

-- Ends the search for the run of a lost message; whether it was a dead letter.
-- @deferred
local function find(...)
  local base, message_id = ...
  redis.call('ZREM', lost_key(base), 'n/' .. message_id)
  return redis.call('ZREM', lost_key(base), 'dead/' .. message_id) == 1
end

-- The leased replay of a run has ended, in whatever way: the first held one is due again,
-- under the time at which it was due before.
local function unhold(base, run_id, message_id)
  if run_id == '' then
    return
  end
  local bookkeeping = run_queue_key(base, run_id)
  if redis.call('HGET', bookkeeping, 'leased') ~= message_id then
    return
  end
  redis.call('HDEL', bookkeeping, 'leased')
  local next_held = redis.call('ZPOPMIN', held_key(base, run_id))
  while next_held[1] do
    local topic, held_id = string.match(next_held[1], '^(.*)/(.*)$')
    redis.call('ZREM', topic_key(base, topic, 'held'), held_id)
    if is_stored(base, topic, held_id) then
      redis.call('ZADD', topic_key(base, topic, 'due'), next_held[2], held_id)
      hint(base, topic, now())
      return
    end
    lose(base, topic, held_id)
    next_held = redis.call('ZPOPMIN', held_key(base, run_id))
  end
end

-- The message that a run's bookkeeping names in a place, unless its record is gone; then it is
-- lost, or nothing would ever take its place again.
local function named(base, run_id, place)
  local bookkeeping = run_queue_key(base, run_id)
  local message_id = redis.call('HGET', bookkeeping, place)
  if not message_id then
    return nil
  end
  local topic = redis.call('HGET', bookkeeping, 'message:' .. message_id)
  if topic and is_stored(base, topic, message_id) then
    return message_id
  end
  unhold(base, run_id, message_id)
  redis.call('HDEL', bookkeeping, place)
  lose(base, topic or '', message_id)
end

-- The message that stands for this one already, if any: itself, when its request is sent again
-- (ids are made once), or the outstanding one that takes its place.
local function standing(base, topic, message, bookkeeping)
  if is_stored(base, topic, message.id) then
    return message.id
  end
  if message.key ~= '' then
    local holder = redis.call('GET', idempotency_key(base, topic, message.run, message.key))
    if holder and is_stored(base, topic, holder) then
      return holder
    end
  end
  if message.kind == 'step' then
    return named(base, message.run, 'step:' .. message.step)
  elseif message.kind == 'wake' then
    local wake = redis.call('HGET', bookkeeping, 'wake')
    return wake and absorbs(base, topic, wake, message) and wake
  end
end

-- Whether a message is of a step that needs none any more; and the step, if any.
local function is_of_closed_step(base, message)
  if message.kind ~= 'step' then
    return false
  end
  local step = read_step(base, message.run, message.step)
  return step and is_terminal(step.status), step
end

-- Notes of a run that is there that it has had a message.
local function note_queued(base, run_id)
  local state = known_run(base, run_id)
  if state.status and not state.queued then
    state.queued = '1'
    redis.call('HSET', run_key(base, run_id), 'queued', '1')
  end
end

-- Sends a message. Returns the id of the message that stands for it, or nil when its step is
-- terminal and nothing is left to deliver; and whether it is a new replay that is due now.
-- @deferred
local function push(...)
  local base, topic, at, message = ...
  local bookkeeping = run_queue_key(base, message.run)
  local holder = standing(base, topic, message, bookkeeping)
  if holder then
    return holder
  end
  local is_closed, step = is_of_closed_step(base, message)
  if is_closed then
    return nil
  end
  redis.call('HSET', message_key(base, topic, message.id),
    'run', message.run, 'kind', message.kind, 'step', message.step, 'key', message.key,
    'queue', message.queue, 'deployment', message.deployment, 'headers', message.headers,
    'body', message.body, 'size', #message.headers + #message.body, 'attempt', '0',
    'failures', '0', 'lost', '0', 'enqueued_at', at, 'due_at', message.due_at)
  redis.call('ZADD', topic_key(base, topic, 'due'), message.due_at, message.id)
  redis.call('SADD', topics_key(base), topic)
  if message.key ~= '' then
    redis.call('SET', idempotency_key(base, topic, message.run, message.key), message.id)
  end
  local wakes = false
  if message.run ~= '' then
    if redis.call('HINCRBY', bookkeeping, 'n', '1') == 1 then
      redis.call('ZREM', parked_key(base), message.run)
      note_queued(base, message.run)
    end
    redis.call('HSET', bookkeeping, 'queue', message.queue, 'message:' .. message.id, topic)
    if message.kind == 'step' then
      redis.call('HSET', bookkeeping, 'step:' .. message.step, message.id)
      forgive_step(base, at, message.run, message.step, step)
    else
      if message.kind == 'wake' then
        redis.call('HSET', bookkeeping, 'wake', message.id)
      end
      -- A replay that is due now begins after whatever was recorded so far.
      wakes = message.due_at == at
      if wakes then
        forgive_wake(base, at, message.run)
      end
    end
  end
  announce(base, topic, at, message.due_at)
  return message.id, wakes
end

-- Frees what an ending message holds: its key, and the one place of its step. What a newer
-- message holds by now stays.
local function settle(base, topic, message_id, message)
  if message.key ~= '' then
    local key = idempotency_key(base, topic, message.run, message.key)
    if redis.call('GET', key) == message_id then
      redis.call('DEL', key)
    end
  end
  if message.kind == 'step' then
    local bookkeeping = run_queue_key(base, message.run)
    local place = 'step:' .. message.step
    if redis.call('HGET', bookkeeping, place) == message_id then
      redis.call('HDEL', bookkeeping, place)
    end
  end
end

-- Deletes a message that nobody will deliver any more.
local function delete_message(base, topic, message_id, run_id)
  redis.call('DEL', message_key(base, topic, message_id))
  if run_id ~= '' then
    redis.call('HDEL', run_queue_key(base, run_id), 'message:' .. message_id)
  end
end

-- Some messages of a run, each with its topic and id, from a cursor on; the next cursor, `0` at
-- the end. Of a small run all are there at once, however few are asked for.
local function scan_messages(base, run_id, cursor, count)
  local reply = redis.call('HSCAN', run_queue_key(base, run_id), cursor, 'MATCH', 'message:*',
    'COUNT', count)
  local found = {}
  for i = 1, #reply[2], 2 do
    found[#found + 1] = {
      topic = reply[2][i + 1], id = string.sub(reply[2][i], #'message:' + 1),
    }
  end
  return found, reply[1]
end

-- The bookkeeping of a run that is over lives as long as messages or dead letters of it.
local function forget_run(base, run_id)
  local bookkeeping = run_queue_key(base, run_id)
  local counts = redis.call('HMGET', bookkeeping, 'n', 'dead')
  if tonumber(counts[1] or '0') <= 0 and tonumber(counts[2] or '0') <= 0 then
    redis.call('DEL', bookkeeping)
  end
end

-- One message of the run is outstanding no more. A live run without any is parked; one that has
-- ended, or never was, is forgotten.
local function count_down(base, at, run_id)
  if run_id == '' or redis.call('HINCRBY', run_queue_key(base, run_id), 'n', '-1') > 0 then
    return
  end
  if is_live(base, run_id) then
    park(base, at, run_id)
  else
    forget_run(base, run_id)
  end
end

-- The fields of a message that decide what happens to it; nil when it is gone.
local function load_message(message)
  local fields = redis.call('HMGET', message, 'run', 'kind', 'step', 'key', 'receipt', 'failures',
    'lost')
  if not fields[1] then
    return nil
  end
  return {
    run = fields[1], kind = fields[2], step = fields[3], key = fields[4],
    receipt = fields[5] or '', failures = tonumber(fields[6]), lost = tonumber(fields[7]),
  }
end

-- Takes a message off its lease for whoever has the receipt of it: its fields, or nil when the
-- lease was lost. The ZREM is the first write of the scripts that call it: a server that is full
-- refuses a growing command only there, so that a full queue can still drain.
local function end_lease(leased, message, message_id, receipt)
  local fields = load_message(message)
  if fields and fields.receipt == receipt and redis.call('ZREM', leased, message_id) == 1 then
    return fields
  end
end

-- Takes a message that was handled out of the queue, for whoever has its receipt: its fields, for
-- `close_delivery`, or nil when the lease was lost. What takes its place is sent in between.
local function take_delivery(base, topic, message_id, receipt)
  local message = end_lease(topic_key(base, topic, 'leased'), message_key(base, topic, message_id),
    message_id, receipt)
  if message then
    delete_message(base, topic, message_id, message.run)
    settle(base, topic, message_id, message)
  end
  return message
end

-- What is left to do for a message that was handled: for its step, and for its run.
local function close_delivery(base, at, message_id, message)
  if message.kind == 'step' then
    owe_open_step(base, at, message.run, message.step)
  end
  unhold(base, message.run, message_id)
  count_down(base, at, message.run)
end

-- Whether this very request has changed the message already, and its reply was lost.
local function changed_by(message, op)
  return redis.call('HGET', message, 'last_op') == op
end

-- What was to come of a message that is a dead letter now is still owed: to nobody as long as
-- the letter is there, which is for an operator to judge, but when it is purged.
local function owe_again(base, at, message)
  if message.kind == 'step' then
    owe_open_step(base, at, message.run, message.step)
  elseif is_live(base, message.run) then
    owe_wake(base, at, message.run)
  end
end

-- Moves a message that nothing more is tried for to the dead letters.
local function bury(base, topic, at, message_id, message, reason)
  redis.call('ZADD', topic_key(base, topic, 'dead'), at, message_id)
  redis.call('HSET', message_key(base, topic, message_id), 'reason', reason, 'died_at', at)
  redis.call('HDEL', message_key(base, topic, message_id), 'receipt')
  settle(base, topic, message_id, message)
  if message.run ~= '' then
    redis.call('HINCRBY', run_queue_key(base, message.run), 'dead', '1')
    owe_again(base, at, message)
  end
  unhold(base, message.run, message_id)
  count_down(base, at, message.run)
end
