-- Sends a dead letter again, under its id and with its counts at zero. Where another message
-- has taken its place meanwhile, or its step is over, it only goes (contract, section 7).
--
-- KEYS: dead, letters
-- ARGV: base, topic, resend, op, run_id, message_id
-- Returns: OK the id of the message that stands for it | DONE | MESSAGE_NOT_FOUND gone; gone is its
--   member where its record was gone, else nothing
--
-- @include lib/clock
-- @include lib/dead

local member = member_of(message_id, run_id)
local book = open_message(base, topic, run_id, message_id)
local letter = read_message(book, message_id)
if redis.call('ZREM', dead, member) == 0 then
  if changed_by(book, message_id, op) then
    return { 'OK', message_id }
  end
  -- Sent again, and it is gone: there was nothing to deliver, or it was delivered since.
  return { resend ~= '' and not letter and 'DONE' or 'MESSAGE_NOT_FOUND', {} }
elseif not letter then
  lose(base, topic, member)
  return { 'MESSAGE_NOT_FOUND', { member } }
end

-- It is a dead letter no more.
local at = now()
redis.call('HDEL', letters, message_id)
if run_id ~= '' then
  count_letter(base, at, book, letter)
end

-- What stands for it, or whether there is nothing to deliver.
open_for(base, topic, letter)
letter.queue, letter.deployment, letter.headers = address_of(letter)
if letter.headers == false then
  letter.headers = fetch_headers(book, letter)
end
local holder = standing(base, topic, book, letter, is_bare(base, run_id))
local is_closed, step = is_of_closed_step(base, letter)
if holder or is_closed then
  delete_record(book, letter)
  if run_id ~= '' and not is_live(base, run_id) then
    forget_book(book)
  end
  store_books()
  return { holder and 'OK' or 'DONE', holder or nil }
end

-- It is as it was sent, but now.
drop(book, 'error:' .. message_id)
drop(book, 'declined:' .. message_id)
put(book, 'message:' .. message_id, sent_again(letter, at))
begin_state(letter, at, op)
store_state(book, letter)
note_queue(book, letter)
enter(base, at, book, letter, step)
store_books()
return { 'OK', message_id }
