-- Ends a leased message, and sends its continuation in the same step (contract, section 7).
--
-- The order matters: the message's own key is free before the continuation takes it, or the
-- continuation would be taken for the message that it follows, and be lost.
--
-- KEYS: leased
-- ARGV: base, topic, resend, run_id, message_id, receipt, follow_up_id, kind, idempotency, delay,
--   body
-- Returns: OK follow_up_id | LEASE_LOST
--
-- @include lib/clock
-- @include lib/later
-- @include lib/queue

-- The continuation of a message: of its run, its step and its kind.
local function continuation_of(ended, book)
  local queue, deployment, headers = address_of(ended)
  if headers == false then
    headers = fetch_headers(book, ended) or ''
  end
  local is_fixed = ended.kind == 'step' or ended.kind == 'other'
  return {
    id = follow_up_id, run = run_id, kind = is_fixed and ended.kind or kind, step = ended.step,
    key = idempotency, queue = queue, deployment = deployment, headers = headers, body = body,
  }
end

local book = open_message(base, topic, run_id, message_id)
local message = end_lease(base, topic, book, message_id, receipt)
if not message then
  -- Sent again, and the message is gone: it is done, by the first run of this request, or else
  -- by another worker that was given it since.
  if resend ~= '' and not read_message(book, message_id) then
    return { 'OK', follow_up_id }
  end
  return { 'LEASE_LOST' }
end
local at = now()
local continuation = follow_up_id ~= '' and continuation_of(message, book)
delete_record(book, message)
settle(base, book, message)
local sent
if continuation then
  continuation.due_at = later(at, delay)
  sent = push(base, topic, at, continuation)
end
close_delivery(base, at, book, message)
store_books()
return { 'OK', sent or '' }
