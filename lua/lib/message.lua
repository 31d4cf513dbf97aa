-- Messages as they are stored, in two fields of a book (lib/book). The envelope, of which only a
-- redrive changes the time: a line of its kind, the bytes of its texts, when it was sent and its
-- topic; then the texts, one behind the other: step, key, queue name, deployment, headers and body.
-- Large headers and a large body, which have a `>` in front of their length, are not among them but
-- fields by themselves, `headers:<id>` and `body:<id>`, beside the book: no script reads a body.
--
-- The state is what changes: attempts, failures, lost leases, when it is due, the receipt of its
-- lease, the request that changed it last, how often it was postponed; of a dead letter also why it
-- died and when. `-` is for none.

-- Headers and a body of more bytes lie in fields by themselves.
local INLINE_BYTES = 4096

local ENVELOPE = '^(%l+) (%d+) (%d+) (%d+) (%d+) (>?)(%d+) (>?)(%d+) (%d+) (%S+)\n()'
local STATE = '^(%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%d+) ?(%S*) ?(%d*)$'

-- The member of a topic's sets that stands for a message; the run is empty for none.
local function member_of(message_id, run_id)
  return message_id .. '/' .. run_id
end

-- The id and the run of a member.
local function split_member(member)
  return string.match(member, '^([^/]*)/(.*)$')
end

-- Headers or a body, as the envelope has them, and whether they are a field of their own.
local function inline(text)
  if #text > INLINE_BYTES then
    return '', '>'
  end
  return text, ''
end

-- The envelope of a message that is sent at a time.
local function pack_envelope(message, at)
  local headers, large_headers = inline(message.headers)
  local body, large_body = inline(message.body)
  return string.format('%s %d %d %d %d %s%d %s%d %s %s\n', message.kind, #message.step,
    #message.key, #message.queue, #message.deployment, large_headers, #message.headers,
    large_body, #message.body, at, message.topic) .. message.step .. message.key .. message.queue
    .. message.deployment .. headers .. body
end

-- What of a message decides its way; nil when that can't be read. `size` are the bytes of its
-- content, `large_headers` and `large_body` tell what is a field of its own. The rest is for
-- `address_of` and those below it: `texts` and `names` are where the texts begin, and those of them
-- that decide nothing, whose bytes are `lengths`.
local function unpack_envelope(text)
  local kind, step, key, queue, deployment, large_headers, headers, large_body, body, sent_at,
    topic, first = string.match(text, ENVELOPE)
  if not kind then
    return nil
  end
  local behind_step = first + step
  return {
    kind = kind, step = string.sub(text, first, behind_step - 1),
    key = string.sub(text, behind_step, behind_step + key - 1), topic = topic, sent_at = sent_at,
    size = headers + body, large_headers = large_headers ~= '', large_body = large_body ~= '',
    is_replay = kind == 'wake' or kind == 'replay',
    envelope = text, texts = first, names = behind_step + key,
    lengths = { queue, deployment, headers, body },
  }
end

-- The queue name, deployment and headers of a message; headers are false where they are large.
local function address_of(message)
  local lengths, first = message.lengths, message.names
  local deployment = first + lengths[1]
  local headers = deployment + lengths[2]
  return string.sub(message.envelope, first, deployment - 1),
    string.sub(message.envelope, deployment, headers - 1),
    not message.large_headers and string.sub(message.envelope, headers, headers + lengths[3] - 1)
end

-- The envelope of a message as if it were sent at another time.
local function sent_again(message, at)
  local head = string.sub(message.envelope, 1, message.texts - 1)
  return (string.gsub(head, '%d+ (%S+\n)$', at .. ' %1'))
    .. string.sub(message.envelope, message.texts)
end

-- The envelope of a message without its content.
local function bare_envelope(message)
  local lengths = message.lengths
  return string.format('%s %d %d %d %d 0 0 %s %s\n', message.kind, #message.step, #message.key,
    lengths[1], lengths[2], message.sent_at, message.topic)
    .. string.sub(message.envelope, message.texts, message.names + lengths[1] + lengths[2] - 1)
end

-- The state of a message.
local function pack_state(message)
  local state = message.attempt .. ' ' .. message.failures .. ' ' .. message.lost .. ' '
    .. message.due_at .. ' ' .. message.receipt .. ' ' .. message.op .. ' ' .. message.postponed
  if message.reason ~= '' then
    return state .. ' ' .. message.reason .. ' ' .. message.died_at
  end
  return state
end

-- Adds what changes to a message; whether that can be read.
local function add_state(message, state)
  message.attempt, message.failures, message.lost, message.due_at, message.receipt, message.op,
    message.postponed, message.reason, message.died_at = string.match(state, STATE)
  return message.attempt ~= nil
end

-- Makes the state of a message that was never delivered.
local function begin_state(message, due_at, op)
  message.attempt, message.failures, message.lost, message.due_at = '0', '0', '0', due_at
  message.receipt, message.op, message.postponed, message.reason = '-', op, '0', ''
end

-- A count of a message, with so many more.
local function increased(count, difference)
  return string.format('%d', count + difference)
end
