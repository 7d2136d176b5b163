-- Rows of jobs and their indexes; comes before each script that writes jobs, after `shared_runs`.
--
-- A row is one MessagePack array: version, name, next_fire_at, deleted, enabled, labels (key, value, key, value...),
-- and the definition as JSON, which no script looks at.
--
--   jobs          hash: id -> row             jobs_due           by next fire time
--   names         hash: name -> id            disabled_named     names of those that are not enabled
--   jobs_named    names, by code point        jobs_deleted       set of ids
--   label:N:K=V   names of jobs with a label  jobs_orphaned      set: deleted ones that may have no run any longer
--   jobs_ahead    by cursor (planned_until)   jobs_trimmed       names of those that keep a number of runs

local JOBS, NAMES = P .. 'jobs', P .. 'names'
local AHEAD, TRIMMED, DISABLED = P .. 'jobs_ahead', P .. 'jobs_trimmed', P .. 'disabled_named'
local JOB_HEADER, JOB_LOOKED_AT = 1, 6

local function read_job(row)
  local _, version, name, next_fire_at, deleted, enabled, labels = unpack_limit(row, JOB_LOOKED_AT, JOB_HEADER)
  return {
    version = version, name = name, next_fire_at = next_fire_at, deleted = deleted, enabled = enabled, labels = labels,
  }
end

local function label_key(key, value) return P .. 'label:' .. #key .. ':' .. key .. '=' .. value end

local function index_job(id, job)
  if job.deleted then
    call('SADD', P .. 'jobs_deleted', id)
    if call('EXISTS', P .. 'runs_of:' .. id) == 0 then call('SADD', P .. 'jobs_orphaned', id) end
    return
  end
  call('HSET', NAMES, job.name, id)
  call('ZADD', P .. 'jobs_named', 0, job.name)
  if not job.enabled then call('ZADD', DISABLED, 0, job.name) end
  if job.next_fire_at then call('ZADD', P .. 'jobs_due', job.next_fire_at, id) end
  for place = 1, #job.labels, 2 do
    call('ZADD', label_key(job.labels[place], job.labels[place + 1]), 0, job.name)
  end
end

local function unindex_job(id, job)
  if job.deleted then
    call('SREM', P .. 'jobs_deleted', id)
    call('SREM', P .. 'jobs_orphaned', id)
    return
  end
  call('HDEL', NAMES, job.name)
  call('ZREM', P .. 'jobs_named', job.name)
  if not job.enabled then call('ZREM', DISABLED, job.name) end
  if job.next_fire_at then call('ZREM', P .. 'jobs_due', id) end
  for place = 1, #job.labels, 2 do
    call('ZREM', label_key(job.labels[place], job.labels[place + 1]), job.name)
  end
end

local function same_labels(one, other)
  if #one ~= #other then return false end
  for place, text in ipairs(one) do
    if other[place] ~= text then return false end
  end
  return true
end

local trimmed_exist = call('EXISTS', TRIMMED) == 1

-- What sweeps look for, collected for `flush`.
local function sweep_in(id, name, planned_until, trims)
  add(AHEAD, planned_until, id)
  if trims then add(TRIMMED, 0, name) elseif trimmed_exist then remove(TRIMMED, name) end
end

local function sweep_out(id, name)
  remove(AHEAD, id)
  if trimmed_exist then remove(TRIMMED, name) end
end

-- Rows read before or written since (false: there is none), and the jobs that were written and not flushed.
local job_rows, jobs_put = {}, {}

local function fetch_jobs(ids)
  for place, row in ipairs(many('HMGET', JOBS, ids)) do job_rows[ids[place]] = row end
end

-- Write a job over the one of its id. Most plans only move the next fire time: that is collected for `flush`.
local function put_job(id, row, old, planned_until, trims)
  local new = read_job(row)
  if jobs_put[id] then
    flush()
    jobs_put = {}
  end
  jobs_put[id], job_rows[id] = true, row
  if old.deleted or new.deleted or old.enabled ~= new.enabled or not same_labels(old.labels, new.labels) then
    unindex_job(id, old)
    index_job(id, new)
  elseif new.next_fire_at then
    add(P .. 'jobs_due', new.next_fire_at, id)
  elseif old.next_fire_at then
    remove(P .. 'jobs_due', id)
  end
  if new.deleted then sweep_out(id, new.name) else sweep_in(id, new.name, planned_until, trims) end
  set_field(JOBS, id, row)
end
