-- Wakes a run that has been owed a wake for `interval` ms; its writer is gone.
--
-- A run with dead letters is the operator's. One that has a replay which is due, leased or held
-- sees to itself: it is looked at again after another interval.
--
-- KEYS: owed, held
-- ARGV: base, interval, topic, message_id, run_id, queue_name, deployment_id, body
-- Returns: OK message_id | LEFT
--
-- @include lib/clock
-- @include lib/rescue

local FIELDS_AT_ONCE, MAX_LOOKS = 100, 20

-- Whether a worker has a replay of the run, or can claim one. Wakes that were never delivered are
-- known by name; this is about those that came back from a worker, or whose delay is over. Of a
-- run with thousands of messages not all are looked at: one wake too many does no harm.
local function has_replay(at)
  local looks, cursor = 0, '0'
  local found
  repeat
    found, cursor = scan_messages(base, run_id, cursor, FIELDS_AT_ONCE)
    looks = looks + 1
    for _, each in ipairs(found) do
      local message = unpack_envelope(each.envelope)
      if message and message.is_replay then
        local member = member_of(each.id, run_id)
        local due_at = redis.call('ZSCORE', topic_key(base, message.topic, 'due'), member)
        if due_at and tonumber(due_at) <= tonumber(at)
          or redis.call('ZSCORE', topic_key(base, message.topic, 'leased'), member) then
          return true
        end
      end
    end
  until cursor == '0' or looks == MAX_LOOKS
  return false
end

local at = now()
local state = known_run(base, run_id)
if not is_old(state.wake_owed, at, interval) then
  return { 'LEFT' }
end

-- Leaves the run alone for so long.
local function look_again(pause)
  state.wake_owed = after_pause(at, interval, pause)
  store_debts(base, at, run_id, state)
  if state.steps_owed == 0 then
    redis.call('ZADD', owed, state.wake_owed, run_id)
  end
  return { 'LEFT' }
end

local book = open_run(base, run_id)
if count_of(book, 'dead') > 0 then
  return look_again(LONG)
end
local is_named = named(base, book, 'wake') or named(base, book, 'leased')
if is_named or redis.call('EXISTS', held) == 1 or has_replay(at) then
  store_books()
  return look_again(interval)
end
return rescue(base, topic, at, {
  id = message_id, run = run_id, kind = 'wake', step = '', key = '', queue = queue_name,
  deployment = deployment_id, body = body,
})
