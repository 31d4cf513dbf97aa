-- Sends a dead letter again, under its id and with its counts at nothing. Where another message
-- has taken its place meanwhile, or its step is over, it only goes (contract, section 7).
--
-- KEYS: dead, message
-- ARGV: base, topic, resend, op, message_id
-- Returns: OK the id of the message that stands for it | DONE | MESSAGE_NOT_FOUND
--
-- @include lib/bare
-- @include lib/clock
-- @include lib/dead

if redis.call('ZREM', dead, message_id) == 0 then
  if changed_by(message, op) then
    return { 'OK', message_id }
  end
  -- Sent again, and it is gone: there was nothing to deliver, or it was delivered since.
  local is_gone = resend ~= '' and redis.call('EXISTS', message) == 0
  return { is_gone and 'DONE' or 'MESSAGE_NOT_FOUND' }
end
local at = now()
local fields = redis.call('HMGET', message, 'run', 'kind', 'step', 'key', 'queue', 'deployment',
  'headers', 'body')
if not fields[1] then
  lose(base, topic, message_id, true)
  return { 'MESSAGE_NOT_FOUND' }
end
local bare = is_bare(base, fields[1])
local again = {
  id = message_id, run = fields[1], kind = fields[2], step = fields[3], key = fields[4],
  queue = fields[5], deployment = fields[6], headers = bare and '' or fields[7],
  body = bare and '' or fields[8], due_at = at,
}
forget_letter(base, at, topic, message_id, again)
local sent = push(base, topic, at, again)
if sent == message_id then
  redis.call('HSET', message, 'last_op', op)
end
if not sent then
  return { 'DONE' }
end
return { 'OK', sent }
