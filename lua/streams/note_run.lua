-- Notes which run writes streams of a name: the first run that is noted, until its note expires.
-- Each further note of that run puts this off, and those of others change nothing. `retention` is
-- in milliseconds, empty for ever.
--
-- KEYS: note
-- ARGV: run_id, retention
-- Returns: OK
--
-- @include lib/clock
-- @include lib/later

local noted = redis.call('GET', note)
if not noted or noted == run_id then
  if retention == '' then
    redis.call('SET', note, run_id)
  else
    redis.call('SET', note, run_id, 'PXAT', later(now(), retention))
  end
end
return { 'OK' }
