-- Lists the streams of a run, sorted: some of those behind the name `after`. Where there is no run,
-- each expires by itself, and its name in the index may outlive it. Those of a run whose user data
-- is deleted have nothing but names.
--
-- KEYS: run, streams
-- ARGV: base, run_id, after
-- Returns: OK names next, the name to go on behind, empty when these are the last
--
-- @unwaited
-- @include lib/end_streams

local NAMES_AT_ONCE = 500

local names, following = streams_behind(base, run_id, after, NAMES_AT_ONCE)
local are_names = redis.call('HEXISTS', run, 'expired_at') == 1
local found = {}
for _, name in ipairs(names) do
  if are_names or redis.call('EXISTS', stream_key(base, run_id, name)) == 1 then
    found[#found + 1] = name
  end
end
return { 'OK', found, following or '' }
