-- The event log of a run: a stream whose entry ids are the slots, payloads beside it.

local LOG_OPTIONAL = { 'occ', 'resume', 'digest', 'token', 'owner' }

-- Appends one event and returns its slot. Under the id `0-*` Redis itself counts on from the last
-- entry, so that slots are dense and a rejected event consumes none. `corr` and `data` are there in
-- each entry, if need be empty: entries with the same fields in the same order share their names.
-- Others are left out when they are empty or nil; so is the payload, which always has at least its
-- tag byte.
local function append(events, payloads, event)
  -- With room for one more: a table that grows is laid out anew.
  local entry = {
    'type', event.type, 'at', event.at, 'spec', event.spec, 'op', event.op,
    'corr', event.corr or '', 'data', event.data or '', nil, nil,
  }
  local size = 12
  for _, name in ipairs(LOG_OPTIONAL) do
    local value = event[name]
    if value and value ~= '' then
      entry[size + 1], entry[size + 2] = name, value
      size = size + 2
    end
  end
  local slot = string.sub(redis.call('XADD', events, '0-*', unpack(entry, 1, size)), 3)
  if event.payload and event.payload ~= '' then
    redis.call('HSET', payloads, slot, event.payload)
  end
  return slot
end

-- An entry of the log: its fields as a table, and as they lie there.
local function read_entry(events, slot)
  local id = '0-' .. slot
  local raw = redis.call('XRANGE', events, id, id)[1][2]
  local fields = {}
  for i = 1, #raw, 2 do
    fields[raw[i]] = raw[i + 1]
  end
  return fields, raw
end
