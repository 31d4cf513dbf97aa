-- Returns a leased message that its worker can't handle, or not yet: due again after `delay` ms,
-- and neither the attempt nor anything else counts (contract, section 7). Workers that have not
-- declined it may have it sooner.
--
-- `step_name` is the name of the step that it asks for, empty for none.
--
-- KEYS: leased, declined
-- ARGV: base, topic, op, run_id, message_id, receipt, delay, step_name
-- Returns: OK | LEASE_LOST
--
-- @include lib/clock
-- @include lib/declined
-- @include lib/later
-- @include lib/queue

local book = open_message(base, topic, run_id, message_id)
local message = end_lease(base, topic, book, message_id, receipt)
if not message then
  return changed_by(book, message_id, op) and { 'OK' } or { 'LEASE_LOST' }
end
local at = now()
local due_at = later(at, delay)
local worker = worker_of(receipt)
local since, before = at, ''
if message.postponed ~= '0' then
  local note = declined_note(book, message_id)
  since, before = note and note.since or at, note and note.decliners or ''
end
local decliners = with_decliner(before, worker)
-- Who may have it now, and might not before: all others, unless it is as it was.
local is_open = not is_among(worker, before) or are_too_many(before)
message.attempt, message.postponed = increased(message.attempt, -1), increased(message.postponed, 1)
message.op = op
put(book, 'declined:' .. message_id, since .. ' ' .. decliners .. '\n' .. step_name)
redis.call('ZADD', declined, since, member_of(message_id, run_id))
free(base, book, message, due_at)
-- One that may have it is to look at once; it knows then when the message is due again. If there is
-- none, any worker has to know, this one too.
if not (is_open and hint_another(base, topic, at, decliners)) then
  announce(base, topic, at, due_at)
end
store_books()
return { 'OK' }
