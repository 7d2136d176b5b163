-- What lists, sweeps and pruning walk through, so that none of them reads history to find what is rare in it.

-- Runs of one queue, newest first; a job's have such an index already.
CREATE INDEX runs_of_queue ON runs (queue_id, id);

CREATE INDEX runs_pending ON runs (namespace_id, id) WHERE state = 0;

-- What went well is most of history: what did not has its own indexes, by state.
CREATE INDEX runs_ended ON runs (namespace_id, state, id) WHERE state > 3;

CREATE INDEX runs_ended_of_queue ON runs (queue_id, state, id) WHERE state > 3;

CREATE INDEX runs_ended_of_owner ON runs (owner_id, state, id) WHERE state > 3 AND owner_id IS NOT NULL;

-- Many runs may be forgotten at one instant (a deleted job's), and are taken in the order of their ids. The index that
-- this one begins with is no longer needed.
CREATE INDEX runs_prunable_in_order ON runs (namespace_id, prune_at, id) WHERE state > 2 AND prune_at IS NOT NULL;

DROP INDEX runs_prunable;

-- Runs that may be held back, by what holds them back: a key and how many it admits, the order of a job, or both. Which
-- gates there are, and what is first behind each, is then a few probes, however many wait.
CREATE INDEX runs_behind_gate ON runs (
    queue_id, priority,
    (iif(serial IS NULL, '', ifnull(owner_id, '')) || '/' || ifnull(concurrency_max, 0) || '/'
        || ifnull('=' || concurrency_key, '')),
    due_at, id
) WHERE state = 0 AND gated = 1;

CREATE INDEX jobs_disabled ON jobs (namespace_id, name) WHERE enabled = 0 AND deleted_at IS NULL;

-- These repeat two fields of the definition for the sweeps. Code of the release before does not write them, so they count
-- only if `swept_version` is the job's version; otherwise the job is one to be looked at.
ALTER TABLE jobs ADD COLUMN planned_until INTEGER;

ALTER TABLE jobs ADD COLUMN runs_max INTEGER;

ALTER TABLE jobs ADD COLUMN swept_version INTEGER;

CREATE INDEX jobs_ahead ON jobs (
    namespace_id, (iif(swept_version IS version, planned_until, 9223372036854775807)), id
) WHERE deleted_at IS NULL;

CREATE INDEX jobs_trimmed ON jobs (namespace_id, name)
WHERE deleted_at IS NULL AND (runs_max IS NOT NULL OR swept_version IS NOT version);

-- How many jobs there are, counted as they come and go.
ALTER TABLE namespaces ADD COLUMN jobs INTEGER NOT NULL DEFAULT 0;

ALTER TABLE namespaces ADD COLUMN jobs_enabled INTEGER NOT NULL DEFAULT 0;

UPDATE namespaces SET
    jobs = (SELECT count(*) FROM jobs WHERE namespace_id = namespaces.num AND deleted_at IS NULL),
    jobs_enabled = (SELECT count(*) FROM jobs WHERE namespace_id = namespaces.num AND deleted_at IS NULL AND enabled);

CREATE TRIGGER jobs_count_new AFTER INSERT ON jobs WHEN NEW.deleted_at IS NULL
BEGIN
    UPDATE namespaces SET jobs = jobs + 1, jobs_enabled = jobs_enabled + NEW.enabled WHERE num = NEW.namespace_id;
END;

CREATE TRIGGER jobs_count_again AFTER UPDATE OF enabled, deleted_at ON jobs
WHEN NEW.enabled IS NOT OLD.enabled OR (NEW.deleted_at IS NULL) IS NOT (OLD.deleted_at IS NULL)
BEGIN
    UPDATE namespaces SET
        jobs = jobs + (NEW.deleted_at IS NULL) - (OLD.deleted_at IS NULL),
        jobs_enabled = jobs_enabled + (NEW.deleted_at IS NULL AND NEW.enabled)
            - (OLD.deleted_at IS NULL AND OLD.enabled)
    WHERE num = NEW.namespace_id;
END;

CREATE TRIGGER jobs_count_gone AFTER DELETE ON jobs WHEN OLD.deleted_at IS NULL
BEGIN
    UPDATE namespaces SET jobs = jobs - 1, jobs_enabled = jobs_enabled - OLD.enabled WHERE num = OLD.namespace_id;
END;
