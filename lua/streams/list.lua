-- Lists the streams of a run, sorted. Where there is no run, each expires by itself, and its name
-- in the index may outlive it. Those of a run whose user data is deleted have nothing but names.
--
-- KEYS: streams
-- ARGV: base, run_id
-- Returns: OK names
--
-- @unwaited
-- @include lib/keys

local are_names = redis.call('HEXISTS', run_key(base, run_id), 'expired_at') == 1
local names = {}
for _, name in ipairs(redis.call('ZRANGE', streams, 0, -1)) do
  if are_names or redis.call('EXISTS', stream_key(base, run_id, name)) == 1 then
    names[#names + 1] = name
  end
end
return { 'OK', names }
