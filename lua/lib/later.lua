-- The time so many milliseconds after `at`. Formatted, because tostring would round it.
local function later(at, milliseconds)
  return string.format('%.0f', tonumber(at) + tonumber(milliseconds))
end
