-- Frees a leased message after a failed attempt, to be tried again after `delay` ms; at the
-- `max_failures`-th failure it is a dead letter (contract, section 7).
--
-- KEYS: leased
-- ARGV: base, topic, op, run_id, message_id, receipt, delay, last_error, max_failures
-- Returns: OK failures | DEAD failures | LEASE_LOST
--
-- @include lib/clock
-- @include lib/later
-- @include lib/queue

local book = open_message(base, topic, run_id, message_id)
local message = end_lease(base, topic, book, message_id, receipt)
if not message then
  local changed = changed_by(book, message_id, op)
  return changed and { changed.reason == '' and 'OK' or 'DEAD', changed.failures }
    or { 'LEASE_LOST' }
end
local at = now()
message.failures, message.op = increased(message.failures, 1), op
if not get(book, 'bare') then
  put(book, 'error:' .. message_id, last_error)
end
if tonumber(message.failures) >= tonumber(max_failures) then
  bury(base, at, book, message, 'max_failures')
  store_books()
  return { 'DEAD', message.failures }
end
local due_at = later(at, delay)
free(base, book, message, due_at)
announce(base, topic, at, due_at)
store_books()
return { 'OK', message.failures }
