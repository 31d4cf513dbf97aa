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
-- Returns: OK now next_due more messages dropped asleep_until, a message being id, run or empty,
--   envelope, state, since when it was postponed or empty, name of its step where its content is
--   not shown, else empty; large headers and bodies are not in the answer; dropped are the
--   members whose record was gone; asleep_until is empty when the worker does not sleep
--
-- @unwaited
-- @include lib/clock
-- @include lib/declined
-- @include lib/later
-- @include lib/lease

local SCANNED_ON_RESEND, READ_AT_ONCE = 5000, 32

-- A leased message as its reader gets it.
local function row_of(book, message)
  local bare = get(book, 'bare')
  local envelope, name, since = message.envelope, '', ''
  if message.postponed ~= '0' then
    local note = declined_note(book, message.id)
    since = note and note.since or ''
  end
  if bare then
    envelope, name = bare_envelope(message), name_of_step(base, message)
  end
  return { message.id, message.run, envelope, pack_state(message), since, name }
end

-- So that a claim that is sent again answers in the same order.
local function is_due_before(a, b)
  local first, second = tonumber(a.due_at), tonumber(b.due_at)
  return first < second or first == second and a.id < b.id
end

-- Leased messages as rows of the answer.
local function rows_of(messages)
  local rows = {}
  for i, message in ipairs(messages) do
    rows[i] = row_of(message.book, message)
  end
  return rows
end

-- What this very request has leased already, when its reply was lost. Its leases end late, so
-- they are sought from that end; what lies behind the bound waits for the end of its lease.
local function leased_before()
  local found = {}
  if resend ~= '' then
    for _, member in ipairs(redis.call('ZRANGE', leased, 0, SCANNED_ON_RESEND - 1, 'REV')) do
      local message_id, run_id = split_member(member)
      local book = open_book(base, topic, run_id, message_id)
      local state = redis.call('HGET', book.key, 'state:' .. message_id)
      local message = state and string.find(state, ' ' .. receipt .. ' ', 1, true)
        and find_message(book, message_id)
      if message then
        message.book = book
        found[#found + 1] = message
      end
    end
  end
  return found
end

local at = now()
local before = leased_before()
if #before > 0 then
  table.sort(before, is_due_before)
  return { 'OK', at, '', '1', rows_of(before), {}, '' }
end
local dropped = {}
local _, next_lease = expire_leases(base, topic, at, max_lost, dropped)

local worker = worker_of(receipt)
local wanted, room = tonumber(limit), tonumber(max_bytes)
local budget = 4 * wanted + 32
local deadline = later(at, lease)
local is_over_budget = false
local messages = {}
-- What the decisions make of the sets: nothing is written before all of them.
local taken, taken_postponed, held_back, gone = {}, {}, {}, {}
local is_decided = {}

-- Looks at the messages of some members, by one command for each run.
local function look_at_members(members, first, last)
  local names_of, runs = {}, {}
  for i = first, last do
    local message_id, run_id = split_member(members[i])
    if run_id == '' then
      open_message(base, topic, '', message_id)
    else
      local names = names_of[run_id]
      if not names then
        names = {}
        names_of[run_id], runs[#runs + 1] = names, run_id
      end
      names[#names + 1] = 'message:' .. message_id
      names[#names + 1] = 'state:' .. message_id
    end
  end
  for _, run_id in ipairs(runs) do
    open_book(base, topic, run_id, '', unpack(names_of[run_id]))
  end
end

-- A message is due no more.
local function take(message, member)
  taken[#taken + 1] = member
  if message.postponed ~= '0' then
    taken_postponed[#taken_postponed + 1] = member
  end
end

-- Holds a replay that is due while another one of its run is leased.
local function hold(book, message, member)
  take(message, member)
  held_back[#held_back + 1] = message
  add(book, 'held', 1)
end

-- Leases a message, unless it is too large beside what is leased already: then that is all.
local function lease_message(book, message, member)
  room = room - (get(book, 'bare') and 0 or message.size)
  is_over_budget = room < 0 and #messages > 0
  if is_over_budget then
    return
  end
  take(message, member)
  -- From its delivery on a wake absorbs no more: what is sent now, the replay may not see.
  if message.kind == 'wake' and get(book, 'wake') == message.id then
    drop(book, 'wake')
  end
  message.attempt, message.receipt = increased(message.attempt, 1), receipt
  store_state(book, message)
  if message.is_replay and serialize ~= '' then
    put(book, 'leased', message.id)
  end
  message.book = book
  messages[#messages + 1] = message
end

-- Decides what becomes of a message that a walk comes by.
local function decide(member, holds)
  if is_decided[member] then
    return
  end
  is_decided[member] = true
  local message_id, run_id = split_member(member)
  local book = open_book(base, topic, run_id, message_id)
  local message = find_message(book, message_id)
  if not message or message.topic ~= topic then
    gone[#gone + 1] = member
    dropped[#dropped + 1] = member
    return
  end
  local waits = message.is_replay and serialize ~= '' and get(book, 'leased')
  if waits then
    waits = named(base, book, 'leased')
  end
  if not waits then
    lease_message(book, message, member)
  elseif holds then
    hold(book, message, member)
  end
end

-- Walks by those that are due, oldest first; whether its budget has ended it.
local function walk_by_due()
  local are_due = redis.call('ZRANGE', due, '-inf', at, 'BYSCORE', 'LIMIT', 0, budget)
  local seen, read = 0, 0
  while seen < #are_due and #messages < wanted and not is_over_budget do
    if read == seen then
      read = math.min(#are_due, seen + math.min(wanted - #messages, READ_AT_ONCE))
      look_at_members(are_due, seen + 1, read)
    end
    seen = seen + 1
    decide(are_due[seen], true)
  end
  return seen == budget and #messages < wanted
end

-- Walks by those that others have declined, which are due, too, some time. Whether it has leased
-- some, and there are more.
local function walk_by_declined()
  local total, count = redis.call('ZCARD', declined), #messages
  if total == 0 then
    return false
  end
  local offered, are_more = offers(base, topic, worker, spot, total)
  for _, member in ipairs(offered) do
    if #messages == wanted or is_over_budget then
      break
    end
    decide(member, false)
  end
  -- Some of these are due before others that were leased above.
  table.sort(messages, is_due_before)
  return #messages > count and are_more
end

-- Moves what is leased now to its set. The begin of a replay is the wake that its run was owed.
local function move_to_leased()
  local leases = {}
  for _, message in ipairs(messages) do
    leases[#leases + 1] = deadline
    leases[#leases + 1] = member_of(message.id, message.run)
    if message.is_replay then
      forgive_wake(base, at, message.run)
    end
  end
  redis.call('ZADD', leased, unpack(leases))
end

-- Writes what was decided. The ZREM is the first write: a full server refuses a growing command
-- only there.
local function move_all()
  if #taken > 0 then
    redis.call('ZREM', due, unpack(taken))
  end
  if #taken_postponed > 0 then
    redis.call('ZREM', declined, unpack(taken_postponed))
  end
  -- One by one: of the largest claim they are more than one command takes from a script.
  for _, message in ipairs(held_back) do
    redis.call('ZADD', held, message.due_at, member_of(message.id, message.run))
    redis.call('ZADD', held_key(base, message.run), message.due_at, topic .. '/' .. message.id)
  end
  for _, member in ipairs(gone) do
    lose(base, topic, member)
  end
  if #messages > 0 then
    move_to_leased()
  end
  store_books()
end

-- When the next message is due, by the first one that is, or the next lease ends; empty for never.
local function next_due(first)
  local due_at, ends_at = first[2] or '', next_lease
  if #messages > 0 and (not ends_at or tonumber(deadline) < tonumber(ends_at)) then
    ends_at = deadline
  end
  if ends_at and (due_at == '' or tonumber(ends_at) < tonumber(due_at)) then
    return ends_at
  end
  return due_at
end

-- Look, and decide.
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local is_cut = false
if first[1] and tonumber(first[2]) <= tonumber(at) then
  is_cut = walk_by_due()
end
if first[1] and not is_cut and not is_over_budget and #messages < wanted then
  is_cut = walk_by_declined()
end

-- Write.
move_all()

-- Sleep, or have another worker told of what is left.
if first[1] then
  first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
end
local upcoming = next_due(first)
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
return { 'OK', at, upcoming, is_more and '1' or '', rows_of(messages), dropped, asleep_until }
