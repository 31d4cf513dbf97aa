-- @include lib/later
-- @include lib/queue

-- The message that an event brings along: sent in the event's own script, so that none is
-- ever there without the other. It comes packed into one argument, since most events have none:
-- netstrings (`<length>:<bytes>`) of topic, id, run, kind, step, key, queue name, deployment,
-- headers, body and delay.

local function unpack_netstrings(packed)
  local fields, position = {}, 1
  while position <= #packed do
    local colon = string.find(packed, ':', position, true)
    local length = tonumber(string.sub(packed, position, colon - 1))
    fields[#fields + 1] = string.sub(packed, colon + 1, colon + length)
    position = colon + length + 1
  end
  return fields
end

-- The message, in the words of the queue.
local function unpack_message(outbox)
  local topic, id, run, kind, step, key, queue, deployment, headers, body, delay =
    unpack(unpack_netstrings(outbox))
  return topic, {
    id = id, run = run, kind = kind, step = step, key = key, queue = queue,
    deployment = deployment, headers = headers, body = body, delay = delay,
  }
end

-- Sends the message at a time, under its delay; without a time, finds what an earlier run of the
-- same request has sent. Returns the id of the message that stands for it, empty for none; and
-- whether it is a new replay that is due now.
-- @deferred
local function carry(...)
  local base, outbox, at = ...
  local topic, message = unpack_message(outbox)
  if not at then
    local id = standing(base, topic, message, run_queue_key(base, message.run))
    if not id and is_of_closed_step(base, message) then
      return ''
    end
    -- Without any it was done meanwhile.
    return id or message.id
  end
  message.due_at = later(at, message.delay)
  local sent, wakes = push(base, topic, at, message)
  return sent or '', wakes
end

-- Sends the message, if there is one. Returns the id of the message that stands for it, empty
-- for none, also when its step is over; and whether it is a new replay that is due now.
local function send_along(base, at, outbox)
  if outbox == '' then
    return '', false
  end
  return carry(base, outbox, at)
end

-- Sends the message of an event that somebody waits for: where it does not wake the run now, the
-- run is owed a wake.
local function send_wake_along(base, at, outbox, run_id)
  local sent, wakes = send_along(base, at, outbox)
  if not wakes then
    owe_wake(base, at, run_id)
  end
  return sent
end

-- The id of the message that stands for one which an earlier run of the same request sent.
local function sent_along(base, outbox)
  return outbox == '' and '' or carry(base, outbox)
end
