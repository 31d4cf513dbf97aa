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
local SETS = { due = true, leased = true, held = true, dead = true, declined = true,
  letters = true }
local ENDED = { c = true, f = true }
local KINDS = { wake = true, replay = true, step = true, other = true }
local REASONS = { max_failures = true, max_lost_leases = true }
local APART = 4096
-- What a book has of a message, each with its id behind a colon.
local PARTS = { message = true, state = true, headers = true, body = true, error = true,
  declined = true }
-- What the book of a run has that is of no single message.
local FIELDS = { n = '^%d+$', dead = '^%d+$', held = '^%d+$', wake = '.', leased = '.',
  queue = '.', topic = '.', bare = '^1$', rewakes = '^%d+$', rewoken_at = '^%d+$',
  rewoken_length = '^%d+$' }

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

-- Messages are known by their id; `lost` has the runs that are mended later.
local messages, topics, keys_held, runs, ids = {}, {}, {}, {}, {}
local lost = scores('lost')

-- What a run has in truth; made at the first look.
local function run_of(run_id)
  local run = runs[run_id]
  if not run then
    run = { n = 0, dead = 0, due = 0, leased = {}, held = {}, steps = {}, book = {} }
    runs[run_id] = run
  end
  return run
end

local function judge_text(message, name, size, apart, beside)
  local id = message.id
  if (apart == '>') ~= (size > APART) then
    tell(id, 'has', size, 'bytes of', name, apart == '>' and 'apart' or 'in its envelope')
  end
  if beside and apart == '' then
    tell(id, 'has', name, 'twice')
  elseif beside and #beside ~= size then
    tell(id, 'has', #beside, 'bytes of', name, 'and tells of', size)
  elseif apart == '>' and not beside and not message.bare then
    tell(id, 'tells of', size, 'bytes of', name, 'and has none')
  end
  -- What lies apart goes at once.
  if message.bare and beside or message.stripped and apart == '' and size > 0 then
    tell(id, 'keeps', name, 'that nobody may see')
  end
end

-- Reads the envelope; nil when it is none.
local function open_envelope(message, parts)
  local head, texts = string.match(parts.message, '^([^\n]*)\n(.*)$')
  local words = {}
  for word in string.gmatch(head or '', '[^ ]+') do
    words[#words + 1] = word
  end
  if not head or #words ~= 9 or table.concat(words, ' ') ~= head then
    return nil
  end
  message.kind, message.sent_at, message.topic = words[1], words[8], words[9]
  local at = 1
  for i, name in ipairs({ 'step', 'key', 'queue', 'deployment', 'headers', 'body' }) do
    local apart, size = string.match(words[i + 1], '^(>?)(%d+)$')
    if not size or apart == '>' and i < 5 then
      return nil
    end
    size = tonumber(size)
    if i > 4 then
      judge_text(message, name, size, apart, parts[name])
    end
    if apart == '' then
      message[name] = string.sub(texts, at, at + size - 1)
      at = at + size
    end
  end
  if at ~= #texts + 1 then
    tell(message.id, 'tells of', at - 1, 'bytes of texts and has', #texts)
  end
  return string.match(message.sent_at, '^%d+$')
end

-- Reads the state; nil when it is none.
local function read_state(message, state)
  local words = {}
  for word in string.gmatch(state or '', '[^ ]+') do
    words[#words + 1] = word
  end
  if (#words ~= 7 and #words ~= 9) or table.concat(words, ' ') ~= state then
    return nil
  end
  for _, i in ipairs({ 1, 2, 3, 4, 7, 9 }) do
    if words[i] and not string.match(words[i], '^%d+$') then
      return nil
    end
  end
  message.attempt, message.failures, message.lost = words[1], words[2], words[3]
  message.due_at, message.postponed = words[4], words[7]
  message.receipt = words[5] ~= '-' and words[5] or nil
  message.reason, message.died_at = words[8], words[9]
  return true
end

local function read_message(run_id, id, parts, bare, stripped)
  local message = { id = id, run = run_id, places = {}, bare = bare, stripped = stripped }
  if messages[id] then
    tell(id, 'is stored twice, for', run_id, 'and', messages[id].run)
  elseif not open_envelope(message, parts) then
    tell(id, 'has the envelope', string.match(parts.message, '^[^\n]*'))
  elseif not read_state(message, parts.state) then
    tell(id, 'has the state', tostring(parts.state))
  else
    messages[id] = message
    ids[#ids + 1] = id
  end
  if stripped and parts.error then
    tell(id, 'keeps an error that nobody may see')
  end
  if parts.declined then
    local since, workers = string.match(parts.declined, '^(%d+) ([^\n]+)\n')
    message.postponed_since = since
    if not since or message.postponed == '0' then
      tell(id, 'is declined', parts.declined, 'and was postponed', tostring(message.postponed))
    elseif string.find(' ' .. workers .. ' ', '  ', 1, true) then
      tell(id, 'is declined by nobody in', workers)
    end
  end
end

-- Takes the messages out of a hash. Returns what is left of it, and whether there were any.
local function read_messages(run_id, fields, bare, stripped)
  local parts_of, rest = {}, {}
  for name, value in pairs(fields) do
    local part, id = string.match(name, '^(%l+):(.+)$')
    if PARTS[part] then
      parts_of[id] = parts_of[id] or {}
      parts_of[id][part] = value
    else
      rest[name] = value
    end
  end
  local any = false
  for id, parts in pairs(parts_of) do
    if parts.message then
      any = true
      read_message(run_id, id, parts, bare, stripped)
    else
      for part in pairs(parts) do
        tell(part .. ':' .. id, 'of', run_id, 'is of no message')
      end
    end
  end
  return rest, any
end

for _, name in ipairs(names('queue:*')) do
  local topic, kind, rest = string.match(name, '^queue:([^:]*):([^:]*):?(.*)$')
  topics[topic] = true
  if kind == 'message' then
    local fields = pairs_of(redis.call('HGETALL', base .. name))
    for field in pairs(fields) do
      local part, id = string.match(field, '^(%l+):(.+)$')
      if id ~= rest or not PARTS[part] then
        tell(name, 'has the field', field)
      end
    end
    if not fields['message:' .. rest] then
      tell(name, 'has no envelope')
    end
    read_messages('', fields, false, false)
    if messages[rest] and messages[rest].topic ~= topic then
      tell(name, 'is of the topic', messages[rest].topic)
    end
  elseif kind == 'key' then
    keys_held[name] = redis.call('GET', base .. name)
  elseif not SETS[kind] or rest ~= '' then
    tell('nobody knows the key', name)
  end
end

-- Large headers and bodies of each run.
local CONTENTS = { headers = true, body = true }
local contents_of = {}
for _, name in ipairs(names('run:*:contents')) do
  local run_id = string.match(name, '^run:([^:]*):contents$')
  if run_id then
    contents_of[run_id] = pairs_of(redis.call('HGETALL', base .. name))
    for field in pairs(contents_of[run_id]) do
      if not CONTENTS[string.match(field, '^%l+')] then
        tell(field, 'of', run_id, 'lies in the wrong hash')
      end
    end
  end
end
for _, name in ipairs(names('run:*:queue')) do
  local run_id = string.match(name, '^run:([^:]*):queue$')
  if run_id then
    local fields = pairs_of(redis.call('HGETALL', base .. name))
    for field in pairs(fields) do
      if CONTENTS[string.match(field, '^%l+')] then
        tell(field, 'of', run_id, 'lies in the wrong hash')
      end
    end
    for field, value in pairs(contents_of[run_id] or {}) do
      fields[field] = value
    end
    contents_of[run_id] = nil
    local run = run_of(run_id)
    local expired = redis.call('HEXISTS', base .. 'run:' .. run_id, 'expired_at') == 1
    local going = redis.call('ZSCORE', base .. 'cleaning', 'run/' .. run_id)
    local cleaned = redis.call('ZSCORE', base .. 'cleaning', 'messages/' .. run_id)
    local bare = fields.bare ~= nil
    local any
    run.book, any = read_messages(run_id, fields, bare, bare and not going and not cleaned)
    if bare and not expired and not going then
      tell(run_id, 'is bare and keeps its user data')
    elseif any and not bare and (expired or going) then
      tell(run_id, 'is not bare, and nobody may see its user data')
    end
  end
end
for run_id in pairs(contents_of) do
  tell(run_id, 'has contents and no messages')
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

-- The message that a member of a set names, if that is of its topic; else what is told of it.
local function member_of(topic, member)
  local id, run_id = string.match(member, '^([^/]*)/(.*)$')
  local message = messages[id]
  if not id then
    return nil, 'which names no run'
  elseif not message then
    return nil, 'and is not stored', run_id
  elseif message.run ~= run_id then
    return nil, 'and is of the run ' .. message.run
  elseif message.topic ~= topic then
    return nil, 'and is of the topic ' .. message.topic
  end
  return message
end

for topic in pairs(topics) do
  for _, place in ipairs(PLACES) do
    for member, score in pairs(scores('queue:' .. topic .. ':' .. place)) do
      local message, problem, lost_run = member_of(topic, member)
      if message then
        message.places[#message.places + 1] = place
        message.place, message.score = place, score
      elseif not (place == 'held' and lost_run and lost[lost_run]) then
        -- What was held behind a lost message goes when its run is mended.
        tell(member, 'lies in', place, 'of', topic, problem)
      end
    end
  end
  for member, since in pairs(scores('queue:' .. topic .. ':declined')) do
    local message, problem = member_of(topic, member)
    if not message or message.place ~= 'due' then
      tell(member, 'is offered in', topic, message and 'and is ' .. (message.place or 'nowhere')
        or problem)
    elseif message.postponed_since ~= since then
      tell(member, 'is offered since', since, 'and was postponed since',
        tostring(message.postponed_since))
    end
  end
  local letters = pairs_of(redis.call('HGETALL', base .. 'queue:' .. topic .. ':letters'))
  for member in pairs(scores('queue:' .. topic .. ':dead')) do
    local id, run_id = string.match(member, '^([^/]*)/(.*)$')
    if id and letters[id] ~= run_id then
      tell(id, 'is dead and the letters of', topic, 'have', letters[id] or 'nothing', 'of it')
    end
    letters[id or ''] = nil
  end
  for id in pairs(letters) do
    tell(id, 'is among the letters of', topic, 'and is not dead')
  end
  if redis.call('SISMEMBER', base .. 'topics', topic) == 0 then
    tell('topics lacks', topic)
  end
end
if lost[''] then
  tell('what is of no run is to be mended')
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
for _, id in ipairs(ids) do
  local message = messages[id]
  local place = message.place or 'nowhere'
  local outstanding = place == 'due' or place == 'leased' or place == 'held'
  local is_replay = message.kind == 'wake' or message.kind == 'replay'
  if #message.places ~= 1 then
    tell(id, 'lies in', #message.places, 'sets:', table.concat(message.places, ', '))
  end
  if not KINDS[message.kind] or (message.kind == 'step') ~= (message.step ~= '')
    or (message.kind == 'other') ~= (message.run == '') then
    tell(id, 'is a', message.kind, 'of the run', message.run, 'and the step', message.step)
  end
  if #message.queue <= #message.topic
    or string.sub(message.queue, 1, #message.topic) ~= message.topic then
    tell(id, 'has the queue name', message.queue, 'and the topic', message.topic)
  end
  if (message.receipt and true or false) ~= (place == 'leased') then
    tell(id, 'is', place, 'and has the receipt', tostring(message.receipt))
  end
  if (message.reason and true or false) ~= (place == 'dead')
    or message.reason and not REASONS[message.reason] then
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
    local name = message.run == ''
      and 'queue:' .. message.topic .. ':key:' .. escape(message.key)
      or message.run .. ' key:' .. message.topic .. '/' .. message.key
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
        and message.due_at == message.sent_at then
        run.fresh = true
      end
    end
  end
end

-- What the bookkeeping of a run says beside its messages.
for run_id, run in pairs(runs) do
  for name, value in pairs(run.book) do
    local topic, key = string.match(name, '^key:([^/]*)/(.+)$')
    if topic then
      if messages[value] or not lost[run_id] then
        keys_held[run_id .. ' key:' .. topic .. '/' .. key] = value
      end
    elseif not string.match(name, '^step:.') and not string.match(value, FIELDS[name] or '^$') then
      tell(run_id, 'has the field', name, value)
    end
  end
  local queue, known = run.book.queue, run.book.topic
  if known and redis.call('SISMEMBER', base .. 'topics', known) == 0 then
    tell(run_id, 'has the topic', known, 'and topics lacks', known)
  end
  local is_known = not queue
  for _, topic in ipairs(queue and redis.call('SMEMBERS', base .. 'topics') or {}) do
    is_known = is_known or #queue > #topic and string.sub(queue, 1, #topic) == topic
  end
  if not is_known then
    tell(run_id, 'has the queue', queue, 'that nothing was ever sent to')
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
  if not wake or not message and lost[run_id] then
    return
  elseif not message or message.kind ~= 'wake' or message.run ~= run_id then
    tell(run_id, 'has the wake', wake, 'which is no wake of it')
  elseif message.attempt ~= '0' or message.failures ~= '0' or message.lost ~= '0'
    or (message.place ~= 'due' and message.place ~= 'held') then
    tell(run_id, 'has the wake', wake, 'which was delivered')
  elseif message.due_at ~= message.sent_at then
    tell(run_id, 'has the wake', wake, 'which was delayed')
  end
  if owed[run_id] and not lost[run_id] then
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
    if step and run.steps[step] ~= id and (messages[id] or not lost[run_id]) then
      tell(run_id, 'has the message', id, 'for step', step, 'and in truth',
        run.steps[step] or 'none')
    end
  end
  for step, id in pairs(run.steps) do
    if not run.book['step:' .. step] then
      tell(run_id, 'does not know the message', id, 'of step', step)
    end
  end
  if not run.live or lost[run_id] then
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

-- What is told of no run that is mended later: it counts what it has lost.
local function judge_counts(run_id, run)
  local book, held = run.book, 0
  for _ in pairs(run.stored_held or {}) do
    held = held + 1
  end
  for name, count in pairs({ n = run.n, dead = run.dead, held = held }) do
    if tonumber(book[name] or '0') ~= count then
      tell(run_id, 'has', name, book[name] or 'absent', 'and in truth', count)
    end
  end
  if next(book) and not run.live and run.n == 0 and run.dead == 0 then
    tell(run_id, 'is not live and has neither messages nor letters, but bookkeeping')
  end
  if (run.live == true and run.n == 0) ~= (parked[run_id] ~= nil) then
    tell(run_id, 'is', run.live and 'live' or 'not live', 'with', run.n, 'messages, and is',
      parked[run_id] and 'parked' or 'not parked')
  end
end

for run_id, run in pairs(runs) do
  local named = run.book.leased
  if named and lost[run_id] and not messages[named] then
    named = nil
  end
  if serialized and (#run.leased > 1 or named ~= run.leased[1]) then
    tell(run_id, 'has leased', named or 'absent', 'and in truth',
      table.concat(run.leased, ', '))
  end
  judge_wake(run_id, run)
  judge_steps(run_id, run)
  if not lost[run_id] then
    judge_held(run_id, run)
    judge_counts(run_id, run)
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
  if run.live and not owed[ARGV[i]] and not run.fresh and not lost[ARGV[i]] then
    tell(ARGV[i], 'needs a replay, and nothing will bring it one')
  end
end

table.sort(wrong)
return { wrong, leased, dead }
