-- Each statement is a transaction of its own and harmless to repeat; none holds a semicolon but at its end.
-- Namespaces, queues and owners (the job that a run belongs to) are integers wherever they repeat.
-- Instants are microseconds, run ids are the 16 bytes of a UUID, states are numbered in the order of a run's life:
-- 0 pending, 1 running, 2 cancelling (below 3: unfinished), 3 completed, 4 failed, 5 cancelled, 6 skipped.
-- Free text that may hold anything (keys, worker names, errors) is UTF-8 in bytea: text can't hold a NUL.

CREATE TABLE IF NOT EXISTS horarium.namespaces (
    num int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE IF NOT EXISTS horarium.queues (
    num int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int8 NOT NULL,
    name text NOT NULL,
    UNIQUE (namespace_id, name)
);

-- Numbers are never used twice, so that one that is remembered is never another job's.
CREATE TABLE IF NOT EXISTS horarium.owners (
    num int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int8 NOT NULL,
    job_id text NOT NULL,
    name text NOT NULL,
    UNIQUE (namespace_id, job_id)
);

CREATE INDEX IF NOT EXISTS owners_by_name ON horarium.owners (namespace_id, name);

-- `num` is the owner's. `definition` is the whole job as JSON; the other columns repeat what queries look at.
-- `labels` is an array of the JSON texts of [key, value].
CREATE TABLE IF NOT EXISTS horarium.jobs (
    num int8 PRIMARY KEY,
    namespace_id int8 NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    version int8 NOT NULL,
    enabled bool NOT NULL,
    next_fire_at int8,
    deleted_at int8,
    labels jsonb NOT NULL,
    planned_until int8 NOT NULL,
    runs_max int8,
    finished bool NOT NULL,
    definition text NOT NULL,
    UNIQUE (namespace_id, id)
);

CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_name ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL;

-- Planning costs what is due, however many jobs there are.
CREATE INDEX IF NOT EXISTS jobs_due ON horarium.jobs (namespace_id, next_fire_at, id)
WHERE next_fire_at IS NOT NULL AND deleted_at IS NULL;

CREATE INDEX IF NOT EXISTS jobs_deleted ON horarium.jobs (namespace_id) WHERE deleted_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS jobs_by_label ON horarium.jobs USING gin (labels) WHERE deleted_at IS NULL;

-- Unfinished runs: few, always changing. Columns are in the order in which rows are read.
-- `gated`: a concurrency key or the order of its job may hold the run back. `details` is JSON of what is rare.
CREATE TABLE IF NOT EXISTS horarium.runs (
    due_at int8 NOT NULL,
    fire_at int8 NOT NULL,
    created_at int8 NOT NULL,
    lease_seconds float8 NOT NULL,
    token int8 NOT NULL,
    lease_expires_at int8,
    started_at int8,
    finished_at int8,
    prune_at int8,
    start_by int8,
    execution_seconds float8,
    namespace_id int8 NOT NULL,
    queue_id int8 NOT NULL,
    owner_id int8,
    attempt int8 NOT NULL,
    concurrency_max int8,
    priority int8 NOT NULL,
    state int8 NOT NULL,
    cause int8 NOT NULL,
    disposition int8,
    gated bool NOT NULL,
    serial bool NOT NULL,
    id bytea NOT NULL,
    worker bytea,
    concurrency_key bytea,
    unique_key bytea,
    payload bytea,
    details bytea,
    progress bytea,
    error bytea,
    result bytea,
    history bytea,
    deadline int8,
    PRIMARY KEY (namespace_id, id)
);

CREATE UNIQUE INDEX IF NOT EXISTS runs_by_key ON horarium.runs (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX IF NOT EXISTS runs_by_fire ON horarium.runs (owner_id, fire_at) WHERE owner_id IS NOT NULL;

-- The claim's own: what waits, in claim order.
CREATE INDEX IF NOT EXISTS runs_ready ON horarium.runs (queue_id, priority DESC, due_at, id) WHERE state = 0 AND NOT gated;

CREATE INDEX IF NOT EXISTS runs_gated ON horarium.runs (queue_id, priority DESC, due_at, id) WHERE state = 0 AND gated;

CREATE INDEX IF NOT EXISTS runs_start_by ON horarium.runs (namespace_id, start_by, id) WHERE state = 0 AND start_by IS NOT NULL;

CREATE INDEX IF NOT EXISTS runs_claimed ON horarium.runs (namespace_id, lease_expires_at, id) WHERE state > 0;

CREATE INDEX IF NOT EXISTS runs_claimed_under ON horarium.runs (namespace_id, concurrency_key)
WHERE state > 0 AND concurrency_key IS NOT NULL;

-- History: written once. A run is in `runs` or here, never in both.
CREATE TABLE IF NOT EXISTS horarium.finished (LIKE horarium.runs, PRIMARY KEY (namespace_id, id));

CREATE UNIQUE INDEX IF NOT EXISTS finished_by_key ON horarium.finished (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX IF NOT EXISTS finished_by_fire ON horarium.finished (owner_id, fire_at) WHERE owner_id IS NOT NULL;

CREATE INDEX IF NOT EXISTS finished_of_owner ON horarium.finished (owner_id, id) WHERE owner_id IS NOT NULL;

CREATE INDEX IF NOT EXISTS finished_prunable ON horarium.finished (namespace_id, prune_at, id) WHERE prune_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS horarium.nodes (
    namespace_id int8 NOT NULL,
    name text NOT NULL,
    beat_at int8 NOT NULL,
    definition text NOT NULL,
    PRIMARY KEY (namespace_id, name)
);

CREATE TABLE IF NOT EXISTS horarium.checks (
    namespace_id int8 PRIMARY KEY,
    passed int8 NOT NULL
);

-- One row for each namespace: who claims what may be held back locks it.
CREATE TABLE IF NOT EXISTS horarium.gates (
    namespace_id int8 PRIMARY KEY
);
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

-- Every version is above 0. That it is said keeps this index for the sweep, which says it too: a plan that was made while
-- all was empty could otherwise look up names here.
CREATE INDEX IF NOT EXISTS jobs_ahead ON horarium.jobs (namespace_id, planned_until, id)
WHERE deleted_at IS NULL AND version > 0;

CREATE INDEX IF NOT EXISTS jobs_trimmed ON horarium.jobs (namespace_id, name)
WHERE deleted_at IS NULL AND runs_max IS NOT NULL;
-- What is stored beside jobs and runs, by name. Names and labels are UTF-8 in bytea, whose order is that of code
-- points; a label is the JSON text of [key, value], `labels` is all of them as a JSON object.

CREATE TABLE IF NOT EXISTS horarium.records (
    namespace_id int8 NOT NULL,
    version int8 NOT NULL,
    name bytea NOT NULL,
    labels bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (namespace_id, name)
);

CREATE TABLE IF NOT EXISTS horarium.record_labels (
    namespace_id int8 NOT NULL,
    name bytea NOT NULL,
    label bytea NOT NULL,
    PRIMARY KEY (namespace_id, name, label)
);

CREATE INDEX IF NOT EXISTS record_labels_by_label ON horarium.record_labels (namespace_id, label, name);
CREATE INDEX IF NOT EXISTS jobs_current ON horarium.jobs (namespace_id, name)
WHERE deleted_at IS NULL AND NOT finished;

CREATE INDEX IF NOT EXISTS jobs_finished ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished;
-- Whether a run of a job is claimed, at a cost that does not depend on how many of the job wait.
CREATE INDEX IF NOT EXISTS runs_claimed_of_owner ON horarium.runs (owner_id, fire_at)
WHERE state > 0 AND owner_id IS NOT NULL;

-- How the runs of a job have ended of late.
CREATE TABLE IF NOT EXISTS horarium.job_health (
    num int8 PRIMARY KEY,
    namespace_id int8 NOT NULL,
    run_id bytea NOT NULL,
    state int8 NOT NULL,
    finished_at int8 NOT NULL,
    error bytea,
    last_success_at int8,
    failures int8 NOT NULL,
    failing_since int8
);

CREATE INDEX IF NOT EXISTS jobs_failing ON horarium.job_health (namespace_id) WHERE failing_since IS NOT NULL;
