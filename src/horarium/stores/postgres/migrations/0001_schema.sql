-- Namespaces, queues and owners (the job that a run belongs to) are small integers wherever they repeat.
-- Instants are microseconds, run ids are the 16 bytes of a UUID, states are numbered in the order of a run's life:
-- 0 pending, 1 running, 2 cancelling (below 3: unfinished), 3 completed, 4 failed, 5 cancelled, 6 skipped.
-- Free text that may hold anything (keys, worker names, errors) is UTF-8 in bytea: text can't hold a NUL.

CREATE TABLE horarium.namespaces (
    num int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- `apart` is 0, or the process of a caller whose own transaction named the queue first: others must not wait for that
-- to commit, so a queue may have several numbers.
CREATE TABLE horarium.queues (
    num int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    apart int4 NOT NULL DEFAULT 0,
    UNIQUE (namespace_id, name, apart)
);

-- Numbers are never used twice, so that one that is remembered is never another job's.
CREATE TABLE horarium.owners (
    num int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int4 NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    UNIQUE (namespace_id, job_id)
);

CREATE INDEX owners_by_name ON horarium.owners (namespace_id, name);

-- `num` is the owner's. `definition` is the whole job as JSON; the other columns repeat what queries look at.
-- `labels` holds each label as the JSON text of [key, value].
CREATE TABLE horarium.jobs (
    num int4 PRIMARY KEY,
    namespace_id int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version int8 NOT NULL,
    enabled bool NOT NULL,
    next_fire_at int8,
    deleted_at int8,
    labels text[] NOT NULL,
    planned_until int8 NOT NULL,
    runs_max int8,
    finished bool NOT NULL,
    definition text NOT NULL,
    UNIQUE (namespace_id, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE UNIQUE INDEX jobs_by_name ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL;

-- Planning costs what is due, however many jobs there are.
CREATE INDEX jobs_due ON horarium.jobs (namespace_id, next_fire_at, id)
WHERE next_fire_at IS NOT NULL AND deleted_at IS NULL;

CREATE INDEX jobs_deleted ON horarium.jobs (namespace_id) WHERE deleted_at IS NOT NULL;

-- New entries of this index wait in a list, of 4 MB by default, and a look for a label reads all of it: tens of
-- milliseconds. An eighth of that is read in a few.
CREATE INDEX jobs_by_label ON horarium.jobs USING gin (labels) WITH (gin_pending_list_limit = 512) WHERE deleted_at IS NULL;

CREATE INDEX jobs_disabled ON horarium.jobs (namespace_id, name) WHERE NOT enabled AND deleted_at IS NULL;

CREATE INDEX jobs_current ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL AND NOT finished;

CREATE INDEX jobs_finished ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished;

-- Every version is above 0. That it is said keeps this index for the sweep, which says it too: a plan that was made while
-- all was empty could otherwise look up names here.
CREATE INDEX jobs_ahead ON horarium.jobs (namespace_id, planned_until, id) WHERE deleted_at IS NULL AND version > 0;

CREATE INDEX jobs_trimmed ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL AND runs_max IS NOT NULL;

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

CREATE TRIGGER jobs_count_new AFTER INSERT ON horarium.jobs
REFERENCING NEW TABLE AS given FOR EACH STATEMENT EXECUTE FUNCTION horarium.count_new_jobs();

CREATE TRIGGER jobs_count_again AFTER UPDATE ON horarium.jobs FOR EACH ROW
WHEN (OLD.enabled <> NEW.enabled OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL))
EXECUTE FUNCTION horarium.count_changed_job();

-- Unfinished runs: few, always changing, so vacuumed early and without pauses. Columns stand by size, so that none is padded.
-- `lease_expires_at` and `deadline`, which few have, are on the steady scale (`clock.Clock`).
-- `gated`: a concurrency key or the order of its job may hold the run back. `details` is JSON of what is rare.
CREATE TABLE horarium.runs (
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
    namespace_id int4 NOT NULL,
    queue_id int4 NOT NULL,
    owner_id int4,
    attempt int4 NOT NULL,
    concurrency_max int4,
    priority int2 NOT NULL,
    state int2 NOT NULL,
    cause int2 NOT NULL,
    disposition int2,
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
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- No two live rows have the same key in these, so the look for equal keys that could share an entry, which the server takes
-- whenever a page is full, finds only those of rows that were claimed or have ended: these go with the next vacuum. It was
-- a tenth of the cost of a claim. (`deduplicate_items = off`)
ALTER INDEX horarium.runs_pkey SET (deduplicate_items = off);

CREATE UNIQUE INDEX runs_by_key ON horarium.runs (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX runs_by_fire ON horarium.runs (owner_id, fire_at) WITH (deduplicate_items = off)
WHERE owner_id IS NOT NULL;

-- The claim's own: waiting runs, in claim order.
CREATE INDEX runs_ready ON horarium.runs (queue_id, priority DESC, due_at, id) WITH (deduplicate_items = off)
WHERE state = 0 AND NOT gated;

CREATE INDEX runs_gated ON horarium.runs (queue_id, priority DESC, due_at, id) WITH (deduplicate_items = off)
WHERE state = 0 AND gated;

-- The gate that may hold a run back: a key and how many it admits, the order of a job, or both.
CREATE FUNCTION horarium.gate(serial bool, owner_id int4, concurrency_max int4, concurrency_key bytea) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text
        || '/' || coalesce('=' || encode(concurrency_key, 'hex'), '')
$$;

-- Which gates there are, and which run is first behind each, is a few probes, however many wait.
CREATE INDEX runs_behind_gate ON horarium.runs (
    queue_id, priority, (horarium.gate(serial, owner_id, concurrency_max, concurrency_key) COLLATE "C"), due_at, id
) WHERE state = 0 AND gated;

CREATE INDEX runs_start_by ON horarium.runs (namespace_id, start_by, id) WHERE state = 0 AND start_by IS NOT NULL;

CREATE INDEX runs_claimed ON horarium.runs (namespace_id, lease_expires_at, id) WITH (deduplicate_items = off)
WHERE state > 0;

CREATE INDEX runs_claimed_under ON horarium.runs (namespace_id, concurrency_key)
WHERE state > 0 AND concurrency_key IS NOT NULL;

-- Whether a run of a job is claimed, at a cost that does not depend on how many of the job wait. By fire time: a claim asks
-- whether one is that fires later than the first that waits.
CREATE INDEX runs_claimed_of_owner ON horarium.runs (owner_id, fire_at) WITH (deduplicate_items = off)
WHERE state > 0 AND owner_id IS NOT NULL;

-- History: written once. A run is in `runs` or here, never in both. NULL here: due and made when it fires, a lease of
-- 30 seconds, one attempt, as many tokens as attempts, and the default of each other column.
CREATE TABLE horarium.finished (LIKE horarium.runs, PRIMARY KEY (namespace_id, id))
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

ALTER TABLE horarium.finished
    ALTER COLUMN due_at DROP NOT NULL,
    ALTER COLUMN created_at DROP NOT NULL,
    ALTER COLUMN lease_seconds DROP NOT NULL,
    ALTER COLUMN token DROP NOT NULL,
    ALTER COLUMN attempt DROP NOT NULL,
    ALTER COLUMN priority DROP NOT NULL,
    ALTER COLUMN cause DROP NOT NULL,
    ALTER COLUMN gated DROP NOT NULL,
    ALTER COLUMN serial DROP NOT NULL;

CREATE UNIQUE INDEX finished_by_key ON horarium.finished (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

-- A job's history is walked by fire time here, too.
CREATE UNIQUE INDEX finished_by_fire ON horarium.finished (owner_id, fire_at) WHERE owner_id IS NOT NULL;

-- Runs that did not complete, by state: most of history completed.
CREATE INDEX finished_ended ON horarium.finished (namespace_id, state, id) WHERE state > 3;

CREATE INDEX finished_ended_of_queue ON horarium.finished (queue_id, state, id) WHERE state > 3;

CREATE INDEX finished_ended_of_owner ON horarium.finished (owner_id, state, id) WHERE state > 3 AND owner_id IS NOT NULL;

-- Equal keys of an index share one entry, in which each further row takes six bytes. So these are by the minute in which
-- a run may be pruned and by the ten seconds in which it fired; rows of one entry are sorted when they are read.
CREATE INDEX finished_prunable_by_minute ON horarium.finished (
    namespace_id, (LEAST(prune_at / 60000000, 2147483647)::int4)
) WHERE prune_at IS NOT NULL;

CREATE INDEX finished_of_queue_by_time ON horarium.finished (
    queue_id, (LEAST(fire_at / 10000000, 2147483647)::int4)
);

CREATE TABLE horarium.nodes (
    namespace_id int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    beat_at int8 NOT NULL,
    definition text NOT NULL,
    PRIMARY KEY (namespace_id, name)
) WITH (fillfactor = 50);

CREATE TABLE horarium.checks (
    namespace_id int4 PRIMARY KEY,
    passed int8 NOT NULL
) WITH (fillfactor = 20);

-- The numbers of these queues, in their order; those that have none get one.
CREATE FUNCTION horarium.queue_numbers(space int4, names text[]) RETURNS int4[] LANGUAGE plpgsql AS $$
DECLARE
    numbers int4[];
BEGIN
    FOR attempt IN 1..2 LOOP
        SELECT array_agg((
            SELECT min(queues.num) FROM horarium.queues WHERE queues.namespace_id = space AND queues.name = asked.name
        ) ORDER BY asked.place) INTO numbers
        FROM unnest(names) WITH ORDINALITY AS asked (name, place);
        EXIT WHEN array_position(numbers, NULL) IS NULL;
        INSERT INTO horarium.queues (namespace_id, name)
        SELECT space, asked.name FROM unnest(names) AS asked (name)
        WHERE (
            SELECT min(num) FROM horarium.queues WHERE queues.namespace_id = space AND queues.name = asked.name
        ) IS NULL
        ORDER BY asked.name ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN numbers;
END $$;

-- For a transaction of the caller's own: the number of this namespace, in which each of these queues has a number.
CREATE FUNCTION horarium.space_elsewhere(namespace text, names text[]) RETURNS int4 LANGUAGE plpgsql AS $$
DECLARE
    space int4 := (SELECT num FROM horarium.namespaces WHERE name = namespace);
BEGIN
    IF space IS NULL THEN
        RAISE invalid_schema_name USING MESSAGE = format('no node has ever opened the namespace %L', namespace),
            HINT = 'Open a Scheduler of this namespace once, before runs are added to it.';
    END IF;
    INSERT INTO horarium.queues (namespace_id, name, apart)
    SELECT space, asked.name, pg_backend_pid() FROM unnest(names) AS asked (name)
    WHERE NOT EXISTS (
        SELECT 1 FROM horarium.queues WHERE queues.namespace_id = space AND queues.name = asked.name
    )
    ON CONFLICT DO NOTHING;
    RETURN space;
END $$;

-- The numbers of these jobs, in their order; those that have none get one. Until the end of the transaction none of
-- them is deleted: deletion takes the same lock alone.
CREATE FUNCTION horarium.owner_numbers(space int4, job_ids text[], names text[]) RETURNS int4[] LANGUAGE plpgsql AS $$
DECLARE
    numbers int4[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1752134258, space);
    FOR attempt IN 1..2 LOOP
        SELECT array_agg((
            SELECT owners.num FROM horarium.owners WHERE owners.namespace_id = space AND owners.job_id = asked.job_id
        ) ORDER BY asked.place) INTO numbers
        FROM unnest(job_ids) WITH ORDINALITY AS asked (job_id, place);
        EXIT WHEN array_position(numbers, NULL) IS NULL;
        INSERT INTO horarium.owners (namespace_id, job_id, name)
        SELECT space, asked.job_id, asked.name FROM unnest(job_ids, names) AS asked (job_id, name)
        WHERE (
            SELECT num FROM horarium.owners WHERE owners.namespace_id = space AND owners.job_id = asked.job_id
        ) IS NULL
        ORDER BY asked.job_id ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN numbers;
END $$;

-- Inserts runs and returns the ids of those inserted. An id, a unique key and a (job, fire time) must be unique over
-- `runs` and `finished` together, while other transactions move rows from one to the other. So every new row, finished
-- ones too, first takes its place in the unique indexes of `runs`; what was moved meanwhile is then seen in `finished`
-- by the next statement, whose snapshot is newer. Normally nothing is; else all is taken back and tried again without
-- what is there. An array that is NULL stands for one of NULLs only.
CREATE FUNCTION horarium.add_runs(
    space int4, queue_names text[], job_ids text[], job_names text[],
    a_id bytea[], a_queue int4[], a_priority int2[], a_due_at int8[], a_fire_at int8[], a_created_at int8[],
    a_owner int4[], a_cause int2[], a_lease_seconds float8[], a_payload bytea[],
    a_state int2[], a_attempt int4[], a_token int8[], a_worker bytea[], a_lease_expires_at int8[],
    a_started_at int8[], a_finished_at int8[], a_disposition int2[], a_prune_at int8[], a_start_by int8[],
    a_execution_seconds float8[], a_serial bool[], a_concurrency_key bytea[], a_concurrency_max int4[],
    a_unique_key bytea[], a_details bytea[], a_progress bytea[], a_error bytea[], a_result bytea[], a_history bytea[],
    a_deadline int8[]
) RETURNS bytea[] LANGUAGE plpgsql AS $$
DECLARE
    queue_nums int4[] := horarium.queue_numbers(space, queue_names);
    owner_nums int4[];
    added bytea[];
    clash bool;
    patience text := current_setting('lock_timeout');
BEGIN
    -- A unique key may be held by a transaction of a caller's own, which is open for as long as the caller likes.
    IF a_unique_key IS NOT NULL THEN
        PERFORM set_config('lock_timeout', '2s', true);
    END IF;
    IF cardinality(job_ids) > 0 THEN
        owner_nums := horarium.owner_numbers(space, job_ids, job_names);
    END IF;
    FOR careful IN 0..1 LOOP
        WITH new AS (
            INSERT INTO horarium.runs (
                namespace_id, id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds,
                payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at, disposition,
                prune_at, start_by, execution_seconds, gated, serial, concurrency_key, concurrency_max, unique_key,
                details, progress, error, result, history, deadline
            )
            SELECT space, given.id, queue_nums[given.queue], coalesce(given.priority, 0::int2), given.due_at,
                given.fire_at, given.created_at, owner_nums[given.owner], given.cause, given.lease_seconds,
                given.payload, coalesce(given.state, 0::int2), coalesce(given.attempt, 0), coalesce(given.token, 0),
                given.worker, given.lease_expires_at, given.started_at, given.finished_at, given.disposition,
                given.prune_at, given.start_by, given.execution_seconds,
                given.concurrency_key IS NOT NULL OR (given.serial IS TRUE AND given.owner IS NOT NULL),
                given.serial IS TRUE, given.concurrency_key, given.concurrency_max, given.unique_key,
                given.details, given.progress, given.error, given.result, given.history, given.deadline
            FROM unnest(
                a_id, a_queue, a_priority, a_due_at, a_fire_at, a_created_at, a_owner, a_cause, a_lease_seconds,
                a_payload, a_state, a_attempt, a_token, a_worker, a_lease_expires_at, a_started_at, a_finished_at,
                a_disposition, a_prune_at, a_start_by, a_execution_seconds, a_serial, a_concurrency_key,
                a_concurrency_max, a_unique_key, a_details, a_progress, a_error, a_result, a_history,
                a_deadline
            ) AS given (
                id, queue, priority, due_at, fire_at, created_at, owner, cause, lease_seconds,
                payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at,
                disposition, prune_at, start_by, execution_seconds, serial, concurrency_key,
                concurrency_max, unique_key, details, progress, error, result, history, deadline
            )
            WHERE careful = 0 OR NOT (
                EXISTS (SELECT 1 FROM horarium.finished f WHERE f.namespace_id = space AND f.id = given.id)
                OR EXISTS (
                    SELECT 1 FROM horarium.finished f
                    WHERE f.owner_id = owner_nums[given.owner] AND f.fire_at = given.fire_at
                )
                OR EXISTS (
                    SELECT 1 FROM horarium.finished f
                    WHERE f.namespace_id = space AND f.unique_key = given.unique_key
                )
            )
            ON CONFLICT DO NOTHING RETURNING id
        )
        SELECT array_agg(new.id) INTO added FROM new;
        SELECT EXISTS (
            SELECT 1 FROM unnest(added) AS own (id) CROSS JOIN LATERAL (
                SELECT 1 FROM horarium.finished f WHERE f.namespace_id = space AND f.id = own.id LIMIT 1
            ) AS there
        ) INTO clash;
        IF NOT clash AND owner_nums IS NOT NULL THEN
            SELECT EXISTS (
                SELECT 1 FROM unnest(a_owner, a_fire_at) AS given (owner, fire_at) CROSS JOIN LATERAL (
                    SELECT f.id FROM horarium.finished f
                    WHERE f.owner_id = owner_nums[given.owner] AND f.fire_at = given.fire_at LIMIT 1
                ) AS there
                CROSS JOIN LATERAL (
                    SELECT 1 FROM horarium.runs own
                    WHERE own.owner_id = owner_nums[given.owner] AND own.fire_at = given.fire_at
                        AND own.id = ANY (added) LIMIT 1
                ) AS here
            ) INTO clash;
        END IF;
        IF NOT clash AND a_unique_key IS NOT NULL THEN
            SELECT EXISTS (
                SELECT 1 FROM unnest(a_unique_key) AS given (unique_key) CROSS JOIN LATERAL (
                    SELECT f.id FROM horarium.finished f
                    WHERE f.namespace_id = space AND f.unique_key = given.unique_key LIMIT 1
                ) AS there
                CROSS JOIN LATERAL (
                    SELECT 1 FROM horarium.runs own
                    WHERE own.namespace_id = space AND own.unique_key = given.unique_key
                        AND own.id = ANY (added) LIMIT 1
                ) AS here
            ) INTO clash;
        END IF;
        EXIT WHEN NOT clash;
        IF careful = 1 THEN
            RAISE serialization_failure USING MESSAGE = 'runs were finished while the same were added';
        END IF;
        DELETE FROM horarium.runs USING (
            SELECT space AS namespace_id, new.id FROM unnest(added) AS new (id) OFFSET 0
        ) AS new
        WHERE runs.namespace_id = new.namespace_id AND runs.id = new.id;
    END LOOP;
    IF a_state IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM horarium.runs USING (
                SELECT space AS namespace_id, new.id FROM unnest(added) AS new (id) OFFSET 0
            ) AS new
            WHERE runs.namespace_id = new.namespace_id AND runs.id = new.id AND runs.state + 0 > 2 RETURNING runs.*
        )
        INSERT INTO horarium.finished (
            namespace_id, id, fire_at, due_at, created_at, lease_seconds, token, attempt, priority, cause, gated, serial,
            queue_id, owner_id, state, worker, lease_expires_at, started_at, finished_at, disposition, prune_at,
            start_by, execution_seconds, concurrency_key, concurrency_max, unique_key, payload, details, progress,
            error, result, history, deadline
        )
        SELECT namespace_id, id, fire_at, nullif(due_at, fire_at), nullif(created_at, fire_at),
            nullif(lease_seconds, 30), nullif(token, attempt), nullif(attempt, 1), nullif(priority, 0),
            nullif(cause, 0), nullif(gated, false), nullif(serial, false),
            queue_id, owner_id, state, worker, lease_expires_at, started_at, finished_at, disposition, prune_at,
            start_by, execution_seconds, concurrency_key, concurrency_max, unique_key, payload, details, progress,
            error, result, history, deadline
        FROM gone;
    END IF;
    IF a_unique_key IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    RETURN added;
END $$;

-- What is stored beside jobs and runs, by name. Names and labels are UTF-8 in bytea, whose order is that of code
-- points; a label is the JSON text of [key, value], `labels` is all of them as a JSON object.

CREATE TABLE horarium.records (
    namespace_id int4 NOT NULL,
    version int8 NOT NULL,
    name bytea NOT NULL,
    labels bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (namespace_id, name)
);

CREATE TABLE horarium.record_labels (
    namespace_id int4 NOT NULL,
    name bytea NOT NULL,
    label bytea NOT NULL,
    PRIMARY KEY (namespace_id, name, label)
);

CREATE INDEX record_labels_by_label ON horarium.record_labels (namespace_id, label, name);

-- How the runs of a job have ended of late. One row of a job is written again and again: it has room beside it.
CREATE TABLE horarium.job_health (
    finished_at int8 NOT NULL,
    last_success_at int8,
    failures int8 NOT NULL,
    failing_since int8,
    num int4 PRIMARY KEY,
    namespace_id int4 NOT NULL,
    state int2 NOT NULL,
    run_id bytea NOT NULL,
    error bytea
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX jobs_failing ON horarium.job_health (namespace_id) WHERE failing_since IS NOT NULL;
