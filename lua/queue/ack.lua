-- Ends a leased message, and sends its continuation in the same step (contract, section 7).
--
-- The order matters: the message's own key is free before the continuation takes it, or the
-- continuation would be taken for the message that it follows, and be lost.
--
-- KEYS: leased, message
-- ARGV: base, topic, message_id, receipt, follow_up_id, kind, idempotency, delay, body
-- Returns: OK follow_up_id | LEASE_LOST
--
-- @include lib/clock
-- @include lib/queue

local held_message = load_message(message)
if not held_message or held_message.receipt ~= receipt
  or redis.call('ZREM', leased, message_id) == 0 then
  return { 'LEASE_LOST' }
end
local envelope = redis.call('HMGET', message, 'queue', 'deployment', 'headers')
redis.call('DEL', message)
settle(base, topic, message_id, held_message)
local sent
if follow_up_id ~= '' then
  local at = now()
  sent = push(base, topic, at, {
    id = follow_up_id, run = held_message.run, kind = kind, step = held_message.step,
    key = idempotency, queue = envelope[1], deployment = envelope[2], headers = envelope[3],
    body = body, due_at = string.format('%.0f', tonumber(at) + tonumber(delay)),
  })
end
release(base, held_message.run, message_id)
count_down(base, held_message.run)
return { 'OK', sent or '' }
