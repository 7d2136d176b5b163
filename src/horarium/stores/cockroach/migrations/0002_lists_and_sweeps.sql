-- Each statement is a transaction of its own and harmless to repeat; none holds a semicolon but at its end.
-- What lists, sweeps and pruning walk through, so that none of them reads history to find what is rare in it.

-- Runs of one queue, newest first; a job's have such an index already.
CREATE INDEX IF NOT EXISTS finished_of_queue ON horarium.finished (queue_id, id);

-- What did not go well, by state.
CREATE INDEX IF NOT EXISTS finished_ended ON horarium.finished (namespace_id, state, id) WHERE state > 3;

CREATE INDEX IF NOT EXISTS finished_ended_of_queue ON horarium.finished (queue_id, state, id) WHERE state > 3;

CREATE INDEX IF NOT EXISTS finished_ended_of_owner ON horarium.finished (owner_id, state, id) WHERE state > 3 AND owner_id IS NOT NULL;

-- Runs that may be held back, by what holds them back: a key and how many it admits, the order of a job, or both. Which
-- gates there are, and what is first behind each, is then a few probes, however many wait.
CREATE INDEX IF NOT EXISTS runs_behind_gate ON horarium.runs (
    queue_id, priority, ((CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
    || coalesce('=' || encode(concurrency_key, 'hex'), ''))),
    due_at, id
) WHERE state = 0 AND gated;

CREATE INDEX IF NOT EXISTS jobs_disabled ON horarium.jobs (namespace_id, name) WHERE NOT enabled AND deleted_at IS NULL;

-- These repeat two fields of the definition for the sweeps. Code of the release before does not write them, so they count
-- only if `swept_version` is the job's version, otherwise the job is one to be looked at.
ALTER TABLE horarium.jobs ADD COLUMN IF NOT EXISTS planned_until int8;

ALTER TABLE horarium.jobs ADD COLUMN IF NOT EXISTS runs_max int8;

ALTER TABLE horarium.jobs ADD COLUMN IF NOT EXISTS swept_version int8;

-- Every version is above 0. That it is said keeps this index for the sweep, which says it too: a plan that was made while
-- all was empty could otherwise look up names here.
CREATE INDEX IF NOT EXISTS jobs_ahead ON horarium.jobs (
    namespace_id, (CASE WHEN swept_version = version THEN planned_until ELSE 9223372036854775807 END), id
) WHERE deleted_at IS NULL AND version > 0;

CREATE INDEX IF NOT EXISTS jobs_trimmed ON horarium.jobs (namespace_id, name)
WHERE deleted_at IS NULL AND (runs_max IS NOT NULL OR swept_version IS DISTINCT FROM version);
