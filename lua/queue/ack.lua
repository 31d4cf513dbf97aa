-- Ends a leased message, and sends its continuation in the same step (contract, section 7).
--
-- The order matters: the message's own key is free before the continuation takes it, or the
-- continuation would be taken for the message that it follows, and be lost.
--
-- KEYS: message
-- ARGV: base, topic, resend, message_id, receipt, follow_up_id, kind, idempotency, delay, body
-- Returns: OK follow_up_id | LEASE_LOST
--
-- @include lib/bare
-- @include lib/clock
-- @include lib/later
-- @include lib/queue

local envelope = follow_up_id ~= ''
  and redis.call('HMGET', message, 'queue', 'deployment', 'headers')
local ended = take_delivery(base, topic, message_id, receipt)
if not ended then
  -- Sent again, and the message is gone: it is done, by the first run of this request, or else
  -- by another worker that was given it since.
  if resend ~= '' and redis.call('EXISTS', message) == 0 then
    return { 'OK', follow_up_id }
  end
  return { 'LEASE_LOST' }
end
local at = now()
local sent
if follow_up_id ~= '' then
  local bare = is_bare(base, ended.run)
  sent = push(base, topic, at, {
    id = follow_up_id, run = ended.run, kind = kind, step = ended.step,
    key = idempotency, queue = envelope[1], deployment = envelope[2],
    headers = bare and '' or envelope[3], body = bare and '' or body,
    due_at = later(at, delay),
  })
end
close_delivery(base, at, message_id, ended)
return { 'OK', sent or '' }
