-- What lists, sweeps and pruning walk through, so that none of them reads history to find what is rare in it.

-- As long as it takes: however much history there is, an index over it is made once.
SET LOCAL statement_timeout = 0;

-- Runs of one queue, newest first; a job's have such an index already.
CREATE INDEX finished_of_queue ON horarium.finished (queue_id, id);

-- What did not go well, by state.
CREATE INDEX finished_ended ON horarium.finished (namespace_id, state, id) WHERE state > 3;

CREATE INDEX finished_ended_of_queue ON horarium.finished (queue_id, state, id) WHERE state > 3;

CREATE INDEX finished_ended_of_owner ON horarium.finished (owner_id, state, id) WHERE state > 3 AND owner_id IS NOT NULL;

-- Many runs may be forgotten at one instant (a deleted job's), and are taken in the order of their ids. The index that
-- this one begins with is no longer needed.
CREATE INDEX finished_prunable_in_order ON horarium.finished (namespace_id, prune_at, id) WHERE prune_at IS NOT NULL;

DROP INDEX horarium.finished_prunable;

-- Runs that may be held back, by what holds them back: a key and how many it admits, the order of a job, or both. Which
-- gates there are, and what is first behind each, is then a few probes, however many wait.
CREATE INDEX runs_behind_gate ON horarium.runs (
    queue_id, priority, ((CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
    || coalesce('=' || encode(concurrency_key, 'hex'), '')) COLLATE "C"),
    due_at, id
) WHERE state = 0 AND gated;

CREATE INDEX jobs_disabled ON horarium.jobs (namespace_id, name) WHERE NOT enabled AND deleted_at IS NULL;

-- These repeat two fields of the definition for the sweeps. Code of the release before does not write them, so they count
-- only if `swept_version` is the job's version; otherwise the job is one to be looked at.
ALTER TABLE horarium.jobs ADD COLUMN planned_until int8;

ALTER TABLE horarium.jobs ADD COLUMN runs_max int8;

ALTER TABLE horarium.jobs ADD COLUMN swept_version int8;

-- Every version is above 0. That it is said keeps this index for the sweep, which says it too: a plan that was made while
-- all was empty could otherwise look up names here.
CREATE INDEX jobs_ahead ON horarium.jobs (
    namespace_id, (CASE WHEN swept_version = version THEN planned_until ELSE 9223372036854775807 END), id
) WHERE deleted_at IS NULL AND version > 0;

CREATE INDEX jobs_trimmed ON horarium.jobs (namespace_id, name)
WHERE deleted_at IS NULL AND (runs_max IS NOT NULL OR swept_version IS DISTINCT FROM version);

-- How many jobs there are, as sums of what came and went: no two transactions write the same row. `prune_runs` adds up.
CREATE TABLE horarium.job_counts (
    namespace_id int4 NOT NULL,
    jobs int8 NOT NULL,
    enabled int8 NOT NULL
);

CREATE INDEX job_counts_of_namespace ON horarium.job_counts (namespace_id);

CREATE FUNCTION horarium.count_new_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO horarium.job_counts (namespace_id, jobs, enabled)
    SELECT namespace_id, count(*), count(*) FILTER (WHERE given.enabled) FROM given
    WHERE deleted_at IS NULL GROUP BY namespace_id;
    RETURN NULL;
END $$;

CREATE FUNCTION horarium.count_changed_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO horarium.job_counts (namespace_id, jobs, enabled) VALUES (
        NEW.namespace_id, (NEW.deleted_at IS NULL)::int - (OLD.deleted_at IS NULL)::int,
        (NEW.enabled AND NEW.deleted_at IS NULL)::int - (OLD.enabled AND OLD.deleted_at IS NULL)::int
    );
    RETURN NULL;
END $$;

LOCK TABLE horarium.jobs IN SHARE ROW EXCLUSIVE MODE;

INSERT INTO horarium.job_counts (namespace_id, jobs, enabled)
SELECT namespace_id, count(*), count(*) FILTER (WHERE enabled) FROM horarium.jobs
WHERE deleted_at IS NULL GROUP BY namespace_id;

CREATE TRIGGER jobs_count_new AFTER INSERT ON horarium.jobs
REFERENCING NEW TABLE AS given FOR EACH STATEMENT EXECUTE FUNCTION horarium.count_new_jobs();

CREATE TRIGGER jobs_count_again AFTER UPDATE ON horarium.jobs FOR EACH ROW
WHEN (OLD.enabled <> NEW.enabled OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL))
EXECUTE FUNCTION horarium.count_changed_job();
