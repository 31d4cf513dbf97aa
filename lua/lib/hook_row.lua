-- @include lib/hook
-- @include lib/rows

-- A hook's reply: { hash, payloads, context of its run }.
local function hook_row(base, run_id, hook_id, resolve_data)
  local run = run_key(base, run_id)
  local row = hook_entity(hook_key(base, run_id, hook_id), run, events_key(base, run_id),
    resolve_data)
  row[3] = resume_context(run)
  return row
end
