-- @include lib/queue

-- A dead letter of a run is gone: it is one less of its run's, whose bookkeeping may go with it.
-- What the sweeper left to the operator is its own matter again.
local function count_letter(base, at, message)
  redis.call('HINCRBY', run_queue_key(base, message.run), 'dead', '-1')
  if not is_live(base, message.run) then
    forget_run(base, message.run)
    return
  end
  redis.call('ZADD', parked_key(base), 'XX', at, message.run)
  restart_debts(base, at, message.run, message.kind == 'step' and message.step or nil)
end

-- The end of a dead letter.
local function forget_letter(base, at, topic, message_id, message)
  delete_message(base, topic, message_id, message.run)
  if message.run ~= '' then
    count_letter(base, at, message)
  end
end
