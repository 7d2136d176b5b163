-- Everything that repeats is a small integer: namespaces, queues, workers, owners (the job that a run belongs to).
-- Instants are microseconds, ids are the 16 bytes of a UUID, states are numbered in the order of a run's life:
-- 0 pending, 1 running, 2 cancelling (below 3: unfinished), 3 completed, 4 failed, 5 cancelled, 6 skipped.

-- `checks` is counted up to prove that the file can be written. `jobs` and `jobs_enabled` are kept by triggers.
CREATE TABLE namespaces (
    num INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    checks INTEGER NOT NULL DEFAULT 0,
    jobs INTEGER NOT NULL DEFAULT 0,
    jobs_enabled INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE queues (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE TABLE workers (
    num INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

-- Numbers are never used twice, so that one that is remembered is never another job's.
CREATE TABLE owners (
    num INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace_id INTEGER NOT NULL,
    job_id BLOB NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (namespace_id, job_id)
);

CREATE INDEX owners_by_name ON owners (namespace_id, name);

-- `num` is the owner's. `definition` is the whole job as JSON; the other columns repeat what queries look at.
CREATE TABLE jobs (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    id BLOB NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    enabled INTEGER NOT NULL,
    next_fire_at INTEGER,
    deleted_at INTEGER,
    labels TEXT,
    planned_until INTEGER NOT NULL,
    runs_max INTEGER,
    finished INTEGER NOT NULL,
    definition TEXT NOT NULL,
    UNIQUE (namespace_id, id)
);

CREATE UNIQUE INDEX jobs_by_name ON jobs (namespace_id, name) WHERE deleted_at IS NULL;

-- Planning costs what is due, however many jobs there are.
CREATE INDEX jobs_due ON jobs (namespace_id, next_fire_at, id) WHERE next_fire_at IS NOT NULL AND deleted_at IS NULL;

CREATE INDEX jobs_deleted ON jobs (namespace_id) WHERE deleted_at IS NOT NULL;

CREATE INDEX jobs_disabled ON jobs (namespace_id, name) WHERE enabled = 0 AND deleted_at IS NULL;

CREATE INDEX jobs_current ON jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished = 0;

-- Jobs that can never fire again.
CREATE INDEX jobs_finished ON jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished = 1;

CREATE INDEX jobs_ahead ON jobs (namespace_id, planned_until, id) WHERE deleted_at IS NULL;

CREATE INDEX jobs_trimmed ON jobs (namespace_id, name) WHERE deleted_at IS NULL AND runs_max IS NOT NULL;

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

CREATE TABLE job_labels (
    num INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    namespace_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (num, key)
) WITHOUT ROWID;

CREATE INDEX job_labels_by_value ON job_labels (namespace_id, key, value, name);

CREATE TRIGGER jobs_label_new AFTER INSERT ON jobs WHEN NEW.labels IS NOT NULL
BEGIN
    INSERT INTO job_labels (num, key, value, namespace_id, name)
    SELECT NEW.num, key, value, NEW.namespace_id, NEW.name FROM json_each(NEW.labels);
END;

CREATE TRIGGER jobs_label_again AFTER UPDATE OF labels ON jobs WHEN NEW.labels IS NOT OLD.labels
BEGIN
    DELETE FROM job_labels WHERE num = NEW.num;
    INSERT INTO job_labels (num, key, value, namespace_id, name)
    SELECT NEW.num, key, value, NEW.namespace_id, NEW.name FROM json_each(NEW.labels);
END;

-- `lease_expires_at` and `deadline` are on the steady scale (`clock.Clock`). The two `_micros` are the durations as `ports.lease_end` rounds them, which SQLite's round() would not.
-- `gated` is 1 if a concurrency key or the order of its job may hold the run back. `details` is JSON of what is rare.
CREATE TABLE runs (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    id BLOB NOT NULL,
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    state INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    fire_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    owner_id INTEGER,
    cause INTEGER NOT NULL,
    lease_seconds REAL NOT NULL,
    lease_micros INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    token INTEGER NOT NULL,
    worker_id INTEGER,
    lease_expires_at INTEGER,
    deadline INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    disposition INTEGER,
    prune_at INTEGER,
    start_by INTEGER,
    execution_seconds REAL,
    execution_micros INTEGER,
    gated INTEGER NOT NULL,
    serial INTEGER,
    concurrency_key TEXT,
    concurrency_max INTEGER,
    unique_key TEXT,
    payload BLOB,
    details BLOB,
    progress BLOB,
    error BLOB,
    result BLOB,
    history BLOB
);

CREATE UNIQUE INDEX runs_by_id ON runs (namespace_id, id);

CREATE UNIQUE INDEX runs_by_key ON runs (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

-- A job's history is walked by fire time, too.
CREATE UNIQUE INDEX runs_by_fire ON runs (owner_id, fire_at) WHERE owner_id IS NOT NULL;

CREATE INDEX runs_unfinished ON runs (owner_id, fire_at, id) WHERE owner_id IS NOT NULL AND state < 3;

-- The claim's own: these two hold only what waits, in claim order, however long history grows.
CREATE INDEX runs_ready ON runs (queue_id, priority DESC, due_at, id, start_by) WHERE state = 0 AND gated = 0;

CREATE INDEX runs_gated ON runs (queue_id, priority DESC, due_at, id, start_by) WHERE state = 0 AND gated = 1;

-- Runs that may be held back, by what holds them back: a key and how many it admits, the order of a job, or both. Which
-- gates there are, and what is first behind each, is then a few probes, however many wait.
CREATE INDEX runs_behind_gate ON runs (
    queue_id, priority,
    (iif(serial IS NULL, '', ifnull(owner_id, '')) || '/' || ifnull(concurrency_max, 0) || '/'
        || ifnull('=' || concurrency_key, '')),
    due_at, id
) WHERE state = 0 AND gated = 1;

CREATE INDEX runs_start_by ON runs (namespace_id, start_by, id) WHERE state = 0 AND start_by IS NOT NULL;

CREATE INDEX runs_claimed ON runs (namespace_id, lease_expires_at, id) WHERE state IN (1, 2);

CREATE INDEX runs_claimed_of_owner ON runs (owner_id) WHERE state IN (1, 2) AND owner_id IS NOT NULL;

CREATE INDEX runs_claimed_under ON runs (namespace_id, concurrency_key)
WHERE state IN (1, 2) AND concurrency_key IS NOT NULL;

-- Two of the indexes that every run of history is in, in half the room: by the ten seconds in which a run fired and by the
-- minute in which it may be forgotten, without its id. The rows of one of them are sorted when they are read.
CREATE INDEX runs_of_queue_by_time ON runs (queue_id, fire_at / 10000000);

CREATE INDEX runs_prunable_by_minute ON runs (namespace_id, prune_at / 60000000) WHERE state > 2 AND prune_at IS NOT NULL;

CREATE INDEX runs_pending ON runs (namespace_id, id) WHERE state = 0;

-- What went well is most of history: what did not has its own indexes, by state.
CREATE INDEX runs_ended ON runs (namespace_id, state, id) WHERE state > 3;

CREATE INDEX runs_ended_of_queue ON runs (queue_id, state, id) WHERE state > 3;

CREATE INDEX runs_ended_of_owner ON runs (owner_id, state, id) WHERE state > 3 AND owner_id IS NOT NULL;

CREATE TABLE nodes (
    namespace_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    beat_at INTEGER NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (namespace_id, name)
) WITHOUT ROWID;

-- What is stored beside jobs and runs, by name. Names and labels are UTF-8 in blobs, whose order is that of code
-- points; a label is the JSON text of [key, value], `labels` is all of them as a JSON object.
CREATE TABLE records (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    name BLOB NOT NULL,
    version INTEGER NOT NULL,
    labels BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE TABLE record_labels (
    namespace_id INTEGER NOT NULL,
    name BLOB NOT NULL,
    label BLOB NOT NULL,
    PRIMARY KEY (namespace_id, name, label)
) WITHOUT ROWID;

CREATE INDEX record_labels_by_label ON record_labels (namespace_id, label, name);

-- How the runs of a job have ended of late.
CREATE TABLE job_health (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    run_id BLOB NOT NULL,
    state INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    error BLOB,
    last_success_at INTEGER,
    failures INTEGER NOT NULL,
    failing_since INTEGER
);

CREATE INDEX jobs_failing ON job_health (namespace_id) WHERE failing_since IS NOT NULL;
