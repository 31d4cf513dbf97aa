-- Applies several events of one run in order (contract, section 5, create_batch): each as its own
-- script would, at consecutive slots. The rejected leave nothing.
--
-- `items` holds for each event its type and correlation id; of a step_started whose step_created is
-- in the batch the number of that, 0 where it was refused before, else empty; how many arguments
-- follow; and these, which the header of its own script names and this one does not. Such a pair is
-- one claim: where the step is another's, nothing happens to it.
--
-- KEYS: run, attributes, events, payloads, ops, waits, wait_states
-- ARGV: base, batch_outbox, batch_op, run_id, resolve_data, max_events, items...
-- Returns: OK message replies, each as the script of its event returns it
--
-- @include lib/clock
-- @include lib/debt
-- @include lib/outbox
-- @include lib/request
-- @event events/step_created
-- @event events/step_started
-- @event events/step_retrying
-- @event events/step_completed
-- @event events/step_failed
-- @event events/wait_created
-- @event events/wait_completed
-- @event events/run_completed
-- @event events/run_failed

local HEAD = 4

local apply = {
  step_created = step_created, step_started = step_started, step_retrying = step_retrying,
  step_completed = step_completed, step_failed = step_failed,
  wait_created = wait_created, wait_completed = wait_completed,
  run_completed = run_completed, run_failed = run_failed,
}
local note = 'batch:' .. batch_op

-- What this request has refused before, when its reply was lost: judged again it might be let in.
local function refused_before()
  local refused = {}
  for place, status, detail in string.gmatch(redis.call('HGET', ops, note) or '',
    '(%d+)=(%S+) ?([^\n]*)\n') do
    refused[tonumber(place)] = { status, detail }
  end
  return refused
end

local at = now()
local length = look_at(run).length
local refused = refused_before()
local replies, refusals, is_accepted = {}, {}, false
local first = 1
while first <= #items do
  local place, last = #replies + 1, first + HEAD - 1 + items[first + 3]
  local kind, step_id, creation = items[first], items[first + 1], tonumber(items[first + 2])
  local reply = refused[place]
  local is_lost = creation and (creation == 0 or replies[creation][1] ~= 'OK')
  if not reply and is_lost and read_step(base, run_id, step_id) then
    reply = { 'CONFLICT' }
  end
  local before = known_run(base, run_id).length
  reply = reply or apply[kind](unpack(items, first + HEAD, last))
  replies[place] = reply
  if reply[1] == 'OK' then
    is_accepted = true
    if creation and known_run(base, run_id).length > before then
      -- Born running: as after a lazy start it is the matter of the replay that runs it.
      forgive_step(base, at, run_id, step_id, read_step(base, run_id, step_id))
    end
  else
    refusals[#refusals + 1] = place .. '=' .. reply[1] .. ' ' .. (reply[2] or '') .. '\n'
  end
  first = last + 1
end

local sent = ''
local state = known_run(base, run_id)
if state.length > length then
  sent = send_along(base, at, batch_outbox)
  if #refusals > 0 then
    remember(ops, note, table.concat(refusals), is_terminal(state.status))
  end
elseif is_accepted then
  sent = sent_along(base, batch_outbox)
end
return { 'OK', sent, replies }
