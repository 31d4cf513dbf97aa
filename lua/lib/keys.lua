-- Keys that only a script knows the parts of. `base` is the partition's prefix. The Python
-- module `keys` builds the same keys; a test holds the two together.

-- User text as a part of a key: everything but letters, digits and `_.-` becomes %XX.
local function escape(text)
  -- Ids as Worlds make them are plain: a function for each call would take longer than this.
  if string.find(text, '^[A-Z0-9a-z_]*$') then
    return text
  end
  return (string.gsub(text, '[^A-Za-z0-9_.-]', function(character)
    return string.format('%%%02X', string.byte(character))
  end))
end

-- The keys of runs that this script has made, by the run: it has one `base`.
local run_keys = {}

local function run_key(base, run_id)
  local key = run_keys[run_id]
  if not key then
    key = base .. 'run:' .. escape(run_id)
    run_keys[run_id] = key
  end
  return key
end

local function hook_key(base, run_id, hook_id)
  return run_key(base, run_id) .. ':hook:' .. escape(hook_id)
end

-- The runs that have a live hook of this id.
local function hook_runs_key(base, hook_id)
  return base .. 'hook:' .. escape(hook_id)
end

local function token_key(base, token_hash)
  return base .. 'token:' .. token_hash
end

local function status_key(base, status)
  return base .. 'runs:status:' .. status
end

local function workflow_key(base, workflow_name, status)
  return base .. 'runs:workflow:' .. escape(workflow_name) .. ':' .. status
end

local function topic_key(base, topic, part)
  return base .. 'queue:' .. topic .. ':' .. part
end

-- The book of a message of no run.
local function message_key(base, topic, message_id)
  return base .. 'queue:' .. topic .. ':message:' .. message_id
end

-- The idempotency key of a message of no run: those of runs are fields of their books.
local function idempotency_key(base, topic, key)
  return base .. 'queue:' .. topic .. ':key:' .. escape(key)
end

-- The book of a run: its messages, and the bookkeeping of them.
local function run_queue_key(base, run_id)
  return run_key(base, run_id) .. ':queue'
end

-- Large headers and bodies of a run's messages.
local function contents_key(base, run_id)
  return run_key(base, run_id) .. ':contents'
end

-- Replays of a run that wait for the one that is leased, by their due time.
local function held_key(base, run_id)
  return run_key(base, run_id) .. ':held'
end

local function attributes_key(base, run_id)
  return run_key(base, run_id) .. ':attributes'
end

local function payloads_key(base, run_id)
  return run_key(base, run_id) .. ':payloads'
end

local function events_key(base, run_id)
  return run_key(base, run_id) .. ':events'
end

-- The log without its payloads, as far as it is copied.
local function stripped_key(base, run_id)
  return run_key(base, run_id) .. ':stripped'
end

-- The log that the copy has just taken the place of.
local function old_key(base, run_id)
  return run_key(base, run_id) .. ':old'
end

local function claims_key(base, run_id)
  return run_key(base, run_id) .. ':claims'
end

local function ops_key(base, run_id)
  return run_key(base, run_id) .. ':ops'
end

local function hooks_key(base, run_id)
  return run_key(base, run_id) .. ':hooks'
end

local function streams_key(base, run_id)
  return run_key(base, run_id) .. ':streams'
end

local function stream_key(base, run_id, name)
  return run_key(base, run_id) .. ':stream:' .. escape(name)
end

local function writers_key(base, run_id, name)
  return stream_key(base, run_id, name) .. ':writers'
end

-- The channel on which the end of a run is hinted.
local function done_channel(base, run_id)
  return run_key(base, run_id) .. ':done'
end

local function runs_key(base)
  return base .. 'runs'
end

local function all_hooks_key(base)
  return base .. 'hooks'
end

-- Runs that are owed a message, or whose steps are, by a time that is no later than since when.
local function owed_key(base)
  return base .. 'owed'
end

-- Live runs without an outstanding message, by the time since when.
local function parked_key(base)
  return base .. 'parked'
end

-- Runs of messages whose record is gone, by the time since when.
local function lost_key(base)
  return base .. 'lost'
end

-- Runs that are over, by the time from which their age counts.
local function finished_key(base)
  return base .. 'finished'
end

-- Hooks that have outlived their run, by the time until which they do.
local function retained_key(base)
  return base .. 'retained'
end

-- What is too large to be done in one script, by the time since when: to be deleted `hooks/<run>`,
-- `streams/<run>`, `messages/<run>`, `run/<run>`, to be kept `keep/<run>`.
local function cleaning_key(base)
  return base .. 'cleaning'
end

-- With several partitions: tokens of others whose hook here is gone.
local function releases_key(base)
  return base .. 'releases'
end

local function topics_key(base)
  return base .. 'topics'
end

-- The channel on which a message wakes one worker.
local function worker_channel(base, topic, worker)
  return base .. 'queue:' .. topic .. ':worker:' .. worker
end
