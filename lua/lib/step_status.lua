-- Whether nothing more happens to a step of this status; false for no step at all.
local function is_step_terminal(status)
  return status == 'completed' or status == 'failed' or status == 'cancelled'
end
