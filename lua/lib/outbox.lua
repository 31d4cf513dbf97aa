-- @include lib/later
-- @include lib/queue

-- What an event brings along for the queue: a message that it sends, and the delivery that it ends.
-- Both happen in the event's own script, so that neither is ever there without the other. They come
-- packed into one argument, since most events have none: a line of lengths in bytes, then the
-- texts, one behind the other: the message's topic, id, run, kind, step, key, queue name,
-- deployment, headers, body and delay, all empty for none; then the topic, run, message and receipt
-- of the delivery, whose lengths are empty for none.

local FIELDS = 15
local LENGTHS =
  '^(%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) (%d*) \n()'

-- The message, in the words of the queue, nil for none; its topic; the delivery, nil for none.
local function unpack_outbox(outbox)
  local fields = { string.match(outbox, LENGTHS) }
  local position = fields[FIELDS + 1]
  for i = 1, FIELDS do
    local length = fields[i]
    if length ~= '' then
      fields[i] = string.sub(outbox, position, position + length - 1)
      position = position + length
    end
  end
  local topic, id, run, kind, step, key, queue, deployment, headers, body, delay, of_topic, of_run,
    ended_id, receipt = unpack(fields)
  local message = id ~= '' and {
    id = id, run = run, kind = kind, step = step, key = key, queue = queue,
    deployment = deployment, headers = headers, body = body, delay = delay,
  } or nil
  local delivery = ended_id ~= '' and {
    topic = of_topic, run = of_run, id = ended_id, receipt = receipt,
  } or nil
  return message, topic, delivery
end

-- What the answer of an event says of what came along: the id of the message that stands for the
-- one that it sends, empty for none; behind it, where the event ends a delivery, `/acked`, or
-- `/lost` when its lease was lost.
local function told(sent, delivery, ended)
  if delivery then
    return sent .. (ended and '/acked' or '/lost')
  end
  return sent
end

-- Sends the message at a time, under its delay, and ends the delivery. The step of this run and id,
-- if any, is as it is given. Returns what the event's answer says of it; and whether the message is
-- a new replay that is due now.
--
-- The order matters, as it does in queue/ack: what the delivery holds is free before the message
-- takes it.
-- @deferred
local function carry(...)
  local base, outbox, at, run_id, step_id, step = ...
  local message, topic, delivery = unpack_outbox(outbox)
  local sent, wakes = '', false
  local ended, book
  if delivery then
    ended, book = take_delivery(base, delivery.topic, delivery.run, delivery.id, delivery.receipt)
  end
  if message then
    message.due_at = later(at, message.delay)
    local is_its = message.step == step_id and message.run == run_id
    sent, wakes = push(base, topic, at, message, is_its and step or nil)
    sent = sent or ''
  end
  if ended then
    local is_over = step and is_terminal(step.status) and book.run == run_id
    close_delivery(base, at, book, ended, is_over and step_id or nil)
  end
  store_books()
  return told(sent, delivery, ended), wakes
end

-- What an earlier run of the same request has sent, and whether it has ended the delivery.
-- @deferred
local function carried(...)
  local base, outbox = ...
  local message, topic, delivery = unpack_outbox(outbox)
  local sent, ended = '', false
  if message then
    -- Without any it was done meanwhile.
    sent = look_for(base, topic, message) or is_of_closed_step(base, message) and '' or message.id
  end
  if delivery then
    local book = open_message(base, delivery.topic, delivery.run, delivery.id)
    ended = not is_stored(book, delivery.id)
  end
  store_books()
  return told(sent, delivery, ended)
end

-- Does what an event brings along, if anything. Returns what its answer says of that, empty for
-- nothing, and of a message also when its step is over; and whether the message is a new replay
-- that is due now. An event of a step gives that as it is by now.
local function send_along(base, at, outbox, run_id, step_id, step)
  if outbox == '' then
    return '', false
  end
  return carry(base, outbox, at, run_id, step_id, step)
end

-- The same for an event that somebody waits for: what comes along and does not wake the run now
-- leaves it owed a wake. Where nothing does, the event has stored that.
local function send_wake_along(base, at, outbox, run_id, step_id, step)
  local sent, wakes = send_along(base, at, outbox, run_id, step_id, step)
  if outbox ~= '' and not wakes then
    owe_wake(base, at, run_id)
  end
  return sent
end

-- The same for an event that an earlier run of the same request has written.
local function sent_along(base, outbox)
  if outbox == '' then
    return ''
  end
  return carried(base, outbox)
end
