-- @include lib/keys
-- @include lib/rows

-- A hook's reply: { hash, payloads, context of its run }; nil when there is no such hook.
local function hook_row(base, run_id, hook_id, resolve_data)
  local row = entity_row(
    hook_key(base, run_id, hook_id), payloads_key(base, run_id), resolve_data)
  if #row[1] == 0 then
    return nil
  end
  row[3] = resume_context(run_key(base, run_id))
  return row
end
