-- The event log of a run: a stream whose entry ids are the slots. A small payload lies in the entry
-- of its event, so that whoever reads the log has both. A large one lies in the hash `payloads`
-- under its slot, and the entry has a reference: `>` and how many bytes it has. So it never goes
-- through a script again, which costs by the byte: readers fetch it by a command of its own.

-- Of a small payload: four kilobytes, and the byte in front that tells its kind.
local SMALL_BYTES = 4097

-- Where the payload stands in an entry that is read.
local PAYLOAD_PLACE = 14

-- Appends one event and returns its slot. Under the id `0-*` Redis itself counts on from the last
-- entry, so that slots are dense and a rejected event consumes none. The first fields are there in
-- each entry, if need be empty: entries with the same fields in the same order share their names.
-- `occ` is left out when it is empty; behind it there may be further names and values. A payload
-- always has at least its first byte.
local function append(events, payloads, kind, at, spec, op, corr, occ, data, payload, ...)
  local size, id = #payload
  local stored = size > SMALL_BYTES and '>' .. size or payload
  if occ == '' then
    id = redis.call('XADD', events, '0-*', 'type', kind, 'at', at, 'spec', spec, 'op', op,
      'corr', corr, 'data', data, 'payload', stored, ...)
  else
    id = redis.call('XADD', events, '0-*', 'type', kind, 'at', at, 'spec', spec, 'op', op,
      'corr', corr, 'data', data, 'payload', stored, 'occ', occ, ...)
  end
  local slot = string.sub(id, 3)
  if size > SMALL_BYTES then
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
  for i = 1, #slots do
    local slot = slots[i]
    if slot and slot ~= own and string.find(slot, '^%d') then
      local id = '0-' .. slot
      local entry = redis.call('XRANGE', events, id, id)[1]
      local raw = entry and entry[2]
      if raw and raw[PAYLOAD_PLACE] ~= '' then
        found[#found + 1] = slot
        found[#found + 1] = raw[PAYLOAD_PLACE]
      end
    end
  end
  return found
end
