-- @include lib/debt
-- @include lib/log
-- @include lib/outbox
-- @include lib/request
-- @include lib/run

-- Waits of a run: a sorted set of their ids by creation, and one hash with their states, so
-- that the end of a run drops them all at once however many there are.

local WAIT_STATE = '^(%a+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- A wait's state as it is stored: status, times in ms and spec version; `-` for none.
local function pack_wait(wait)
  return table.concat({
    wait.status, wait.created_at, wait.updated_at, wait.resume_at, wait.completed_at or '-',
    wait.spec_version,
  }, ' ')
end

local function unpack_wait(state)
  local status, created_at, updated_at, resume_at, completed_at, spec_version =
    string.match(state, WAIT_STATE)
  return {
    status = status, created_at = created_at, updated_at = updated_at, resume_at = resume_at,
    completed_at = completed_at, spec_version = spec_version,
  }
end

-- What this request was answered, if it wrote its event already: the wait as it was then, whose
-- state the request remembers.
local function wait_answered_before(base, events, ops, op, outbox)
  local slot, own, noted = remembered(ops, events, op)
  return own and { 'OK', slot, own.at, sent_along(base, outbox), noted }
end
