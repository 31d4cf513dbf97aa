-- @include lib/queue

-- A dead letter of a run is gone: it is one less of its run's. What the sweeper left to the
-- operator is its own matter again.
local function count_letter(base, at, book, message)
  add(book, 'dead', -1)
  if is_live(base, book.run) then
    redis.call('ZADD', parked_key(base), 'XX', at, book.run)
    restart_debts(base, at, book.run, message.kind == 'step' and message.step or nil)
  end
end

-- The end of a dead letter; the bookkeeping of its run may go with it.
local function forget_letter(base, at, book, message)
  redis.call('HDEL', topic_key(base, message.topic, 'letters'), message.id)
  delete_record(book, message)
  if book.run ~= '' then
    count_letter(base, at, book, message)
    if not is_live(base, book.run) then
      forget_book(book)
    end
  end
end
