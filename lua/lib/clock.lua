-- The one clock of a partition: the server's, in whole milliseconds, and one time for all that a
-- script does. A string, because numbers cost more as arguments and come back in another shape when
-- they are read again.
local moment

local function now()
  if not moment then
    local time = redis.call('TIME')
    moment = time[1] .. string.sub('00000' .. time[2], -6, -4)
  end
  return moment
end
