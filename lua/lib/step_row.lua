-- @include lib/log
-- @include lib/step_record

-- A step's reply: { record, payloads, name }.
local function step_row(record, name, events, resolve_data)
  if resolve_data ~= 'all' then
    return { record, {}, name }
  end
  local step = words_of(record)
  return { record, resolve(events, { step.slot, step.error_slot, step.output_slot }), name }
end
