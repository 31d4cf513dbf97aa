-- The event log of a run: a stream whose entry ids are the slots. A small payload lies in the entry
-- of its event, so that whoever reads the log has both. A large one lies in the hash `payloads`
-- under its slot, and the entry has a reference: `>` and how many bytes it has. So it never goes
-- through a script again, which costs by the byte: readers fetch it by a command of its own.

-- Of a small payload: four kilobytes, and the byte in front that tells its kind.
local SMALL_BYTES = 4097

local LOG_OPTIONAL = { 'occ', 'resume', 'digest', 'token', 'owner' }
-- Where the payload stands in an entry that is read.
local PAYLOAD_PLACE = 14

-- Appends one event and returns its slot. Under the id `0-*` Redis itself counts on from the last
-- entry, so that slots are dense and a rejected event consumes none. The first fields are there in
-- each entry, if need be empty: entries with the same fields in the same order share their names.
-- Others are left out when they are empty or nil. A payload always has at least its first byte.
local function append(events, payloads, event)
  local payload = event.payload or ''
  local is_large = #payload > SMALL_BYTES
  -- With room for one more: a table that grows is laid out anew.
  local entry = {
    'type', event.type, 'at', event.at, 'spec', event.spec, 'op', event.op,
    'corr', event.corr or '', 'data', event.data or '',
    'payload', is_large and '>' .. #payload or payload, nil, nil,
  }
  local size = PAYLOAD_PLACE
  for _, name in ipairs(LOG_OPTIONAL) do
    local value = event[name]
    if value and value ~= '' then
      entry[size + 1], entry[size + 2] = name, value
      size = size + 2
    end
  end
  local slot = string.sub(redis.call('XADD', events, '0-*', unpack(entry, 1, size)), 3)
  if is_large then
    redis.call('HSET', payloads, slot, payload)
  end
  return slot
end

-- The fields of an entry of the log as they lie there, nil for none.
local function raw_entry(events, slot)
  local id = '0-' .. slot
  local entry = redis.call('XRANGE', events, id, id)[1]
  return entry and entry[2]
end

-- An entry of the log: its fields as a table, and as they lie there.
local function read_entry(events, slot)
  local raw = raw_entry(events, slot)
  local fields = {}
  for i = 1, #raw, 2 do
    fields[raw[i]] = raw[i + 1]
  end
  return fields, raw
end

-- The fields of an entry as they lie there, but for its payload.
local function without_payload(raw)
  for i = 1, #raw, 2 do
    if raw[i] == 'payload' then
      raw[i + 1] = ''
    end
  end
  return raw
end

-- The payloads of slots, or the references to them, as slot, text, slot, text. A slot is false,
-- empty or has a minus for none. `own` is that of the event that the caller just sent, whose
-- payload it knows.
local function resolve(events, slots, own)
  local found = {}
  for _, slot in ipairs(slots) do
    if slot and slot ~= own and tonumber(slot) and tonumber(slot) > 0 then
      local raw = raw_entry(events, slot)
      if raw and raw[PAYLOAD_PLACE] ~= '' then
        found[#found + 1] = slot
        found[#found + 1] = raw[PAYLOAD_PLACE]
      end
    end
  end
  return found
end
