-- @include lib/queue

-- The end of a dead letter: it is one less of its run's, whose bookkeeping may go with it.
local function forget_letter(base, topic, message_id, run_id)
  redis.call('DEL', message_key(base, topic, message_id))
  if run_id == '' then
    return
  end
  redis.call('HINCRBY', run_queue_key(base, run_id), 'dead', '-1')
  forget_if_over(base, run_id)
end
