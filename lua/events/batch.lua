-- Applies several events of one run in order (contract, section 5, create_batch): each as its own
-- script would, at consecutive slots. The rejected leave nothing.
--
-- `items` holds for each event its type, correlation id, spec version, occurred_at, data, payload,
-- what else it needs (step name, `retry_after`, `resume_at`, error code), and of a step_started
-- whose step_created is in the batch the number of that, 0 where it was refused before, or empty.
-- Such a pair is one claim: where the step is another's, nothing happens to it.
--
-- KEYS: run, attributes, events, payloads, ops, steps, waits, wait_states
-- ARGV: base, outbox, op, run_id, resolve_data, max_events, items...
-- Returns: OK message replies, each as the script of its event returns it
--
-- @include lib/clock
-- @include lib/finish_run
-- @include lib/step
-- @include lib/wait

local WIDTH = 8

local keys = {
  base = base, run_id = run_id, run = run, attributes = attributes, events = events,
  payloads = payloads, ops = ops, steps = steps, waits = waits,
  wait_states = wait_states,
}
local apply = {
  step_created = add_step, step_started = start_step, step_retrying = retry_step,
  step_completed = complete_step, step_failed = fail_step,
  wait_created = add_wait, wait_completed = complete_wait,
  run_completed = finish_run, run_failed = finish_run,
}
local note = 'batch:' .. op

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
local length = redis.call('XLEN', events)
local refused = refused_before()
local replies, refusals, is_accepted = {}, {}, false
for first = 1, #items, WIDTH do
  local place = #replies + 1
  local kind, extra, creation = items[first], items[first + 6], tonumber(items[first + 7])
  local event = {
    type = kind, at = at, corr = items[first + 1], spec = items[first + 2],
    occ = items[first + 3], data = items[first + 4], payload = items[first + 5],
    op = op .. '/' .. place,
  }
  keys.step = step_key(base, run_id, event.corr)
  local reply = refused[place]
  local is_lost = creation and (creation == 0 or replies[creation][1] ~= 'OK')
  if not reply and is_lost and redis.call('EXISTS', keys.step) == 1 then
    reply = { 'CONFLICT' }
  end
  reply = reply or apply[kind](keys, event, {
    base = base, run_id = run_id, outbox = '', resolve_data = resolve_data,
    max_events = max_events, step_name = extra, retry_after = extra, resume_at = extra,
    error_code = kind == 'run_failed' and extra or nil,
    status = kind == 'run_failed' and 'failed' or 'completed',
    slot_field = kind == 'run_failed' and 'error_slot' or 'output_slot',
  })
  replies[place] = reply
  if reply[1] == 'OK' then
    is_accepted = true
    if creation then
      -- Born running: as after a lazy start it is the matter of the replay that runs it.
      forgive_step(base, run_id, event.corr)
    end
  else
    refusals[#refusals + 1] = place .. '=' .. reply[1] .. ' ' .. (reply[2] or '') .. '\n'
  end
end

local sent = ''
if redis.call('XLEN', events) > length then
  sent = send_along(base, at, outbox)
  if #refusals > 0 then
    remember(ops, note, table.concat(refusals), is_terminal(redis.call('HGET', run, 'status')))
  end
elseif is_accepted then
  sent = sent_along(base, outbox)
end
return { 'OK', sent, replies }
