-- Releases a leased message that its worker had no time to finish: due at once, and the
-- attempt does not count (contract, section 7).
--
-- KEYS: leased
-- ARGV: base, topic, op, run_id, message_id, receipt
-- Returns: OK | LEASE_LOST
--
-- @unwaited
-- @include lib/clock
-- @include lib/queue

local book = open_message(base, topic, run_id, message_id)
local message = end_lease(base, topic, book, message_id, receipt)
if not message then
  return changed_by(book, message_id, op) and { 'OK' } or { 'LEASE_LOST' }
end
local at = now()
message.attempt, message.op = increased(message.attempt, -1), op
free(base, book, message, at)
hint(base, topic, at)
store_books()
return { 'OK' }
