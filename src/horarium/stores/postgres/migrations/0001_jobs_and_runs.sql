-- Namespaces, queues and owners (the job that a run belongs to) are small integers wherever they repeat.
-- Instants are microseconds, run ids are the 16 bytes of a UUID, states are numbered in the order of a run's life:
-- 0 pending, 1 running, 2 cancelling (below 3: unfinished), 3 completed, 4 failed, 5 cancelled, 6 skipped.
-- Free text that may hold anything (keys, worker names, errors) is UTF-8 in bytea: text can't hold a NUL.

CREATE TABLE horarium.namespaces (
    num int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE horarium.queues (
    num int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    UNIQUE (namespace_id, name)
);

-- Numbers are never used twice, so that whoever remembers one can't mistake it for another job's.
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
    definition text NOT NULL,
    UNIQUE (namespace_id, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE UNIQUE INDEX jobs_by_name ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL;

-- Planning costs what is due, however many jobs there are.
CREATE INDEX jobs_due ON horarium.jobs (namespace_id, next_fire_at, id)
WHERE next_fire_at IS NOT NULL AND deleted_at IS NULL;

CREATE INDEX jobs_deleted ON horarium.jobs (namespace_id) WHERE deleted_at IS NOT NULL;

CREATE INDEX jobs_by_label ON horarium.jobs USING gin (labels) WHERE deleted_at IS NULL;

-- What is unfinished: small, always changing, so vacuumed early and without pauses. Columns stand by size, so that none is padded.
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
    PRIMARY KEY (namespace_id, id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE UNIQUE INDEX runs_by_key ON horarium.runs (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX runs_by_fire ON horarium.runs (owner_id, fire_at) WHERE owner_id IS NOT NULL;

-- The claim's own: what waits, in claim order.
CREATE INDEX runs_ready ON horarium.runs (queue_id, priority DESC, due_at, id) WHERE state = 0 AND NOT gated;

CREATE INDEX runs_gated ON horarium.runs (queue_id, priority DESC, due_at, id) WHERE state = 0 AND gated;

CREATE INDEX runs_start_by ON horarium.runs (namespace_id, start_by, id) WHERE state = 0 AND start_by IS NOT NULL;

CREATE INDEX runs_claimed ON horarium.runs (namespace_id, lease_expires_at, id) WHERE state > 0;

CREATE INDEX runs_claimed_under ON horarium.runs (namespace_id, concurrency_key)
WHERE state > 0 AND concurrency_key IS NOT NULL;

-- History: written once. A run stands in `runs` or here, never in both.
CREATE TABLE horarium.finished (LIKE horarium.runs, PRIMARY KEY (namespace_id, id))
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE UNIQUE INDEX finished_by_key ON horarium.finished (namespace_id, unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX finished_by_fire ON horarium.finished (owner_id, fire_at) WHERE owner_id IS NOT NULL;

CREATE INDEX finished_of_owner ON horarium.finished (owner_id, id) WHERE owner_id IS NOT NULL;

CREATE INDEX finished_prunable ON horarium.finished (namespace_id, prune_at) WHERE prune_at IS NOT NULL;

-- What went well is most of history; whoever looks for the rest need not walk past it.
CREATE INDEX finished_otherwise ON horarium.finished (namespace_id, id) WHERE state > 3;

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
            SELECT queues.num FROM horarium.queues WHERE queues.namespace_id = space AND queues.name = asked.name
        ) ORDER BY asked.place) INTO numbers
        FROM unnest(names) WITH ORDINALITY AS asked (name, place);
        EXIT WHEN array_position(numbers, NULL) IS NULL;
        INSERT INTO horarium.queues (namespace_id, name)
        SELECT space, asked.name FROM unnest(names) AS asked (name)
        WHERE (
            SELECT num FROM horarium.queues WHERE queues.namespace_id = space AND queues.name = asked.name
        ) IS NULL
        ORDER BY asked.name ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN numbers;
END $$;

-- The numbers of these jobs, in their order; those that have none get one. Until the end of the transaction none of
-- them is forgotten: whoever forgets takes the same lock alone.
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
    a_unique_key bytea[], a_details bytea[], a_progress bytea[], a_error bytea[], a_result bytea[], a_history bytea[]
) RETURNS bytea[] LANGUAGE plpgsql AS $$
DECLARE
    queue_nums int4[] := horarium.queue_numbers(space, queue_names);
    owner_nums int4[];
    added bytea[];
    clash bool;
BEGIN
    IF cardinality(job_ids) > 0 THEN
        owner_nums := horarium.owner_numbers(space, job_ids, job_names);
    END IF;
    FOR careful IN 0..1 LOOP
        WITH new AS (
            INSERT INTO horarium.runs (
                namespace_id, id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds,
                payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at, disposition,
                prune_at, start_by, execution_seconds, gated, serial, concurrency_key, concurrency_max, unique_key,
                details, progress, error, result, history
            )
            SELECT space, given.id, queue_nums[given.queue], coalesce(given.priority, 0::int2), given.due_at,
                given.fire_at, given.created_at, owner_nums[given.owner], given.cause, given.lease_seconds,
                given.payload, coalesce(given.state, 0::int2), coalesce(given.attempt, 0), coalesce(given.token, 0),
                given.worker, given.lease_expires_at, given.started_at, given.finished_at, given.disposition,
                given.prune_at, given.start_by, given.execution_seconds,
                given.concurrency_key IS NOT NULL OR (given.serial IS TRUE AND given.owner IS NOT NULL),
                given.serial IS TRUE, given.concurrency_key, given.concurrency_max, given.unique_key,
                given.details, given.progress, given.error, given.result, given.history
            FROM unnest(
                a_id, a_queue, a_priority, a_due_at, a_fire_at, a_created_at, a_owner, a_cause, a_lease_seconds,
                a_payload, a_state, a_attempt, a_token, a_worker, a_lease_expires_at, a_started_at, a_finished_at,
                a_disposition, a_prune_at, a_start_by, a_execution_seconds, a_serial, a_concurrency_key,
                a_concurrency_max, a_unique_key, a_details, a_progress, a_error, a_result, a_history
            ) AS given (
                id, queue, priority, due_at, fire_at, created_at, owner, cause, lease_seconds,
                payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at,
                disposition, prune_at, start_by, execution_seconds, serial, concurrency_key,
                concurrency_max, unique_key, details, progress, error, result, history
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
        INSERT INTO horarium.finished SELECT * FROM gone;
    END IF;
    RETURN added;
END $$;
