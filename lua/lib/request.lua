-- @include lib/log

-- One request, once. A request whose reply was lost is sent again, under the same `op`, and must
-- find what its first run wrote instead of writing it twice. Most find it behind what refuses
-- them: the entry that made the entity in their way has their `op`. Those that would be let
-- through twice leave `op -> slot` in the hash `ops` of their run, and look there first.

-- How long `ops` outlives its run: longer than any caller goes on asking.
local OPS_SECONDS = 3600

-- The entry of a slot as a table, if this request wrote it; else nil.
-- @deferred
local function own_entry(...)
  local events, slot, op = ...
  local entry = slot and read_entry(events, slot)
  if entry and entry.op == op then
    return entry
  end
end

-- Notes what a request wrote: a slot, and behind it whatever its answer needs. `is_over` says that
-- the run has ended, so that the note has an end, too.
local function remember(ops, op, written, is_over)
  redis.call('HSET', ops, op, written)
  if is_over then
    redis.call('EXPIRE', ops, OPS_SECONDS)
  end
end

-- The slot, the entry and the rest of a note.
-- @deferred
local function read_note(...)
  local events, note = ...
  local slot, rest = string.match(note, '^(%d+) ?(.*)$')
  return slot, read_entry(events, slot), rest
end

-- What this request wrote, as slot, entry and the rest of the note; nil when it wrote nothing.
local function remembered(ops, events, op)
  local note = redis.call('HGET', ops, op)
  if note then
    return read_note(events, note)
  end
end
