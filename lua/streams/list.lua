-- Lists the streams of a run, sorted. Where there is no run, each expires by itself, and its name
-- in the index may outlive it.
--
-- KEYS: streams
-- ARGV: base, run_id
-- Returns: OK names
--
-- @unwaited
-- @include lib/keys

local names = {}
for _, name in ipairs(redis.call('ZRANGE', streams, 0, -1)) do
  if redis.call('EXISTS', stream_key(base, run_id, name)) == 1 then
    names[#names + 1] = name
  end
end
return { 'OK', names }
