-- The one clock of a partition: the server's, in whole milliseconds. A string, because
-- numbers cost more as arguments and come back in another shape when they are read again.
local function now()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end
