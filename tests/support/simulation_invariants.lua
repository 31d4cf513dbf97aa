-- Judges the queue of a namespace from its raw keys, in the server.
--
-- KEYS: a key of the namespace
-- ARGV: base, `1` when a run has at most one leased replay, then the runs that need a replay
-- Returns: sentences that tell what is wrong; id and receipt of all that is leased, in turn;
--   id, run and kind of all dead letters, in turn
--
-- It builds its keys by itself: what the scripts have wrong it must not have wrong likewise.

local base, serialized = ARGV[1], ARGV[2] == '1'
local PLACES = { 'due', 'leased', 'held', 'dead' }
local ENDED = { c = true, f = true }
local FIELDS = { 'run', 'kind', 'step', 'key', 'receipt', 'reason', 'attempt', 'failures', 'lost',
  'enqueued_at', 'due_at', 'died_at', 'postponed', 'postponed_since' }

local wrong = {}
local function tell(...)
  wrong[#wrong + 1] = table.concat({ ... }, ' ')
end

local function escape(text)
  return (string.gsub(text, '[^A-Za-z0-9_.-]', function(character)
    return string.format('%%%02X', string.byte(character))
  end))
end

-- What lies behind the base in the keys of a pattern.
local function names(pattern)
  local found = redis.call('KEYS', base .. pattern)
  for i, key in ipairs(found) do
    found[i] = string.sub(key, #base + 1)
  end
  return found
end

local function pairs_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

local function scores(key)
  return pairs_of(redis.call('ZRANGE', base .. key, 0, -1, 'WITHSCORES'))
end

-- -- what is there --------------------------------------------------------------------------

local messages, topics, keys_held = {}, {}, {}
for _, name in ipairs(names('queue:*')) do
  local topic, kind, rest = string.match(name, '^queue:([^:]*):([^:]*):?(.*)$')
  topics[topic] = true
  if kind == 'message' then
    local message = { topic = topic, id = rest, places = {} }
    for i, value in ipairs(redis.call('HMGET', base .. name, unpack(FIELDS))) do
      message[FIELDS[i]] = value
    end
    messages[rest] = message
  elseif kind == 'key' then
    keys_held[name] = redis.call('GET', base .. name)
  elseif kind ~= 'due' and kind ~= 'leased' and kind ~= 'held' and kind ~= 'dead'
    and kind ~= 'declined' then
    tell('nobody knows the key', name)
  end
end
for topic in pairs(topics) do
  for _, place in ipairs(PLACES) do
    for id, score in pairs(scores('queue:' .. topic .. ':' .. place)) do
      local message = messages[id]
      if message and message.topic == topic then
        message.places[#message.places + 1] = place
        message.place, message.score = place, score
      else
        tell(id, 'lies in', place, 'of', topic, 'and is not stored')
      end
    end
  end
  for id, since in pairs(scores('queue:' .. topic .. ':declined')) do
    local message = messages[id]
    if not message or message.topic ~= topic or message.place ~= 'due' then
      tell(id, 'is offered in', topic, 'and is', message and message.place or 'not stored')
    elseif message.postponed_since ~= since then
      tell(id, 'is offered since', since, 'and was postponed since',
        tostring(message.postponed_since))
    end
  end
  if redis.call('SISMEMBER', base .. 'topics', topic) == 0 then
    tell('topics lacks', topic)
  end
end

local runs = {}
-- What a run has in truth; made at the first look.
local function run_of(run_id)
  local run = runs[run_id]
  if not run then
    run = { n = 0, dead = 0, due = 0, leased = {}, held = {}, steps = {}, book = {} }
    runs[run_id] = run
  end
  return run
end

for _, name in ipairs(names('run:*:queue')) do
  local run_id = string.match(name, '^run:([^:]*):queue$')
  if run_id then
    run_of(run_id).book = pairs_of(redis.call('HGETALL', base .. name))
  end
end
for _, name in ipairs(names('run:*:held')) do
  local run_id = string.match(name, '^run:([^:]*):held$')
  if run_id then
    run_of(run_id).stored_held = scores(name)
  end
end
for _, status in ipairs({ 'pending', 'running' }) do
  for _, run_id in ipairs(redis.call('ZRANGE', base .. 'runs:status:' .. status, 0, -1)) do
    run_of(run_id).live = true
  end
end
local in_owed, parked = scores('owed'), scores('parked')

-- What is owed: a run its wake, or as `<run>/<step>` a step its message.
local owed, steps_of = {}, {}
for run_id in pairs(runs) do
  local fields = pairs_of(redis.call('HGETALL', base .. 'run:' .. escape(run_id)))
  local wake, count = string.match(fields.owed or '', '^(%d*) (%d+)$')
  if wake and wake ~= '' then
    owed[run_id] = wake
  end
  local steps, owing = {}, 0
  for place = 1, tonumber(fields.steps or '0') do
    local step_id = fields['steps:' .. place]
    local words = {}
    for word in string.gmatch(fields['step:' .. step_id], '%S+') do
      words[#words + 1] = word
    end
    steps[place] = { id = step_id, status = words[1] }
    if words[13] ~= '-' then
      owed[run_id .. '/' .. step_id] = words[13]
      owing = owing + 1
    end
  end
  steps_of[run_id] = steps
  if runs[run_id].live and owing ~= tonumber(count or '0') then
    tell(run_id, 'owes', count or '0', 'steps their message, and in truth', owing)
  end
  if runs[run_id].live and (wake ~= nil) ~= (in_owed[run_id] ~= nil) then
    tell(run_id, 'is', in_owed[run_id] and 'in' or 'not in', 'owed, and owes', fields.owed or '')
  end
end

-- -- messages -------------------------------------------------------------------------------

local leased, dead = {}, {}
local key_owner = {}
for id, message in pairs(messages) do
  local place = message.place or 'nowhere'
  local outstanding = place == 'due' or place == 'leased' or place == 'held'
  local is_replay = message.kind == 'wake' or message.kind == 'replay'
  if #message.places ~= 1 then
    tell(id, 'lies in', #message.places, 'sets:', table.concat(message.places, ', '))
  end
  if (message.receipt and true or false) ~= (place == 'leased') then
    tell(id, 'is', place, 'and has the receipt', tostring(message.receipt))
  end
  if (message.reason and true or false) ~= (place == 'dead') then
    tell(id, 'is', place, 'and has the reason', tostring(message.reason))
  end
  if tonumber(message.attempt) < message.failures + message.lost then
    tell(id, 'has more ends than deliveries')
  end
  local time = (place == 'due' or place == 'held') and message.due_at
    or place == 'dead' and (message.died_at or 'no time')
  if time and tonumber(message.score) ~= tonumber(time) then
    tell(id, 'is', place, 'at', message.score, 'and says', time)
  end
  if message.key ~= '' and outstanding then
    local name = 'queue:' .. message.topic .. ':key:' .. escape(message.run) .. '/'
      .. escape(message.key)
    if key_owner[name] then
      tell(id, 'and', key_owner[name], 'are outstanding under one key')
    end
    key_owner[name] = id
  end
  if place == 'leased' then
    leased[#leased + 1] = id
    leased[#leased + 1] = message.receipt or ''
  elseif place == 'dead' then
    dead[#dead + 1] = id
    dead[#dead + 1] = message.run
    dead[#dead + 1] = message.kind
  end
  if place == 'held' and not (is_replay and message.run ~= '' and serialized) then
    tell(id, 'is held and is no replay of a run')
  end
  if message.run ~= '' then
    local run = run_of(message.run)
    run.n = run.n + (outstanding and 1 or 0)
    run.dead = run.dead + (place == 'dead' and 1 or 0)
    if message.kind == 'step' and outstanding then
      if run.steps[message.step] then
        tell('two messages of step', message.step, 'of', message.run)
      end
      run.steps[message.step] = id
    elseif is_replay then
      run.due = run.due + (place == 'due' and 1 or 0)
      if place == 'leased' then
        run.leased[#run.leased + 1] = id
      elseif place == 'held' then
        run.held[message.topic .. '/' .. id] = message.score
      end
      -- One that is due at once and that nobody was given: it will see all that was recorded.
      if (place == 'due' or place == 'held') and message.attempt == '0'
        and message.due_at == message.enqueued_at then
        run.fresh = true
      end
    end
  end
end
for name, holder in pairs(keys_held) do
  if key_owner[name] ~= holder then
    tell(name, 'names', holder, 'and is', key_owner[name] and 'of ' .. key_owner[name] or 'free')
  end
end
for name, id in pairs(key_owner) do
  if not keys_held[name] then
    tell(id, 'is outstanding and its key is free')
  end
end

-- -- runs -----------------------------------------------------------------------------------

local function judge_wake(run_id, run)
  local wake = run.book.wake
  local message = wake and messages[wake]
  if not wake then
    return
  elseif not message or message.kind ~= 'wake' or message.run ~= run_id then
    tell(run_id, 'has the wake', wake, 'which is no wake of it')
  elseif message.attempt ~= '0' or message.failures ~= '0' or message.lost ~= '0'
    or (message.place ~= 'due' and message.place ~= 'held') then
    tell(run_id, 'has the wake', wake, 'which was delivered')
  elseif message.due_at ~= message.enqueued_at then
    tell(run_id, 'has the wake', wake, 'which was delayed')
  end
  if owed[run_id] then
    tell(run_id, 'has a wake and is owed one')
  end
end

local function judge_held(run_id, run)
  local stored = run.stored_held or {}
  for member, score in pairs(run.held) do
    if stored[member] ~= score then
      tell(run_id, 'does not hold', member, 'at', score, 'but at', stored[member] or 'no time')
    end
  end
  for member in pairs(stored) do
    if not run.held[member] then
      tell(run_id, 'holds', member, 'which is not held')
    end
  end
  if next(run.held) and #run.leased == 0 and run.due == 0 then
    tell(run_id, 'has held replays, and nothing will free them')
  end
end

local function judge_steps(run_id, run)
  for name, id in pairs(run.book) do
    local step = string.match(name, '^step:(.*)$')
    if step and run.steps[step] ~= id then
      tell(run_id, 'has the message', id, 'for step', step, 'and in truth',
        run.steps[step] or 'none')
    end
  end
  for step, id in pairs(run.steps) do
    if not run.book['step:' .. step] then
      tell(run_id, 'does not know the message', id, 'of step', step)
    end
  end
  if not run.live then
    return
  end
  for _, each in ipairs(steps_of[run_id] or {}) do
    local step, status = each.id, each.status
    local is_owed = owed[run_id .. '/' .. step]
    -- A step that was started lazily is the matter of the replay that runs it.
    if not ENDED[status] and not run.steps[step] and not is_owed
      and string.sub(step, 1, 4) ~= 'lazy' then
      tell('step', step, 'of', run_id, 'is', status, 'and nobody will run it')
    elseif run.steps[step] and is_owed then
      tell('step', step, 'of', run_id, 'has a message and is owed one')
    end
  end
end

for run_id, run in pairs(runs) do
  local book = run.book
  if tonumber(book.n or '0') ~= run.n then
    tell(run_id, 'has n', book.n or 'absent', 'and outstanding', run.n)
  end
  if tonumber(book.dead or '0') ~= run.dead then
    tell(run_id, 'has dead', book.dead or 'absent', 'and in truth', run.dead)
  end
  if serialized and (#run.leased > 1 or book.leased ~= run.leased[1]) then
    tell(run_id, 'has leased', book.leased or 'absent', 'and in truth',
      table.concat(run.leased, ', '))
  end
  judge_wake(run_id, run)
  judge_held(run_id, run)
  judge_steps(run_id, run)
  if next(book) and not run.live and run.n == 0 and run.dead == 0 then
    tell(run_id, 'is not live and has neither messages nor letters, but bookkeeping')
  end
  if (run.live == true and run.n == 0) ~= (parked[run_id] ~= nil) then
    tell(run_id, 'is', run.live and 'live' or 'not live', 'with', run.n, 'messages, and is',
      parked[run_id] and 'parked' or 'not parked')
  end
end
for run_id in pairs(parked) do
  if not runs[run_id] then
    tell(run_id, 'is parked and is no live run')
  end
end
for run_id in pairs(in_owed) do
  if redis.call('EXISTS', base .. 'run:' .. escape(run_id)) == 0 then
    tell(run_id, 'is owed, and there is no such run')
  end
end
for i = 3, #ARGV do
  local run = run_of(ARGV[i])
  if run.live and not owed[ARGV[i]] and not run.fresh then
    tell(ARGV[i], 'needs a replay, and nothing will bring it one')
  end
end

table.sort(wrong)
return { wrong, leased, dead }
