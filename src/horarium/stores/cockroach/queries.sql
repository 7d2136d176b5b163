-- The queries that differ from those of the PostgreSQL store; all others are shared. Columns of `given` are sent whole,
-- never as a NULL array. Rows to be deleted are found by a subquery, which versions before 23.1 need.

-- name: intern_gates
INSERT INTO horarium.gates (namespace_id) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: queues_named
SELECT name, num FROM horarium.queues WHERE namespace_id = $1 AND name = ANY ($2::text[]);

-- name: intern_queues
INSERT INTO horarium.queues (namespace_id, name)
SELECT $1::int8, given.name FROM unnest($2::text[]) AS given (name) ORDER BY given.name
ON CONFLICT DO NOTHING;

-- name: owners_of
SELECT job_id, num FROM horarium.owners WHERE namespace_id = $1 AND job_id = ANY ($2::text[]);

-- name: intern_owners
INSERT INTO horarium.owners (namespace_id, job_id, name)
SELECT $1::int8, given.job_id, given.name FROM unnest($2::text[], $3::text[]) AS given (job_id, name)
ORDER BY given.job_id
ON CONFLICT DO NOTHING;

-- name: add_jobs
INSERT INTO horarium.jobs (
    num, namespace_id, id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until,
    runs_max, finished_version, swept_version
)
SELECT given.num, $1::int8, given.id, given.name, given.version, given.enabled, given.next_fire_at, given.deleted_at,
    given.labels::jsonb, given.definition, given.planned_until, given.runs_max, given.finished_version, given.version
FROM unnest(
    $2::int8[], $3::text[], $4::text[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::text[], $10::text[],
    $11::int8[], $12::int8[], $13::int8[]
) AS given (
    num, id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished_version
)
ON CONFLICT DO NOTHING RETURNING id;

-- name: list_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR (finished_version IS NOT DISTINCT FROM version) = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_jobs_prefixed
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2 AND name >= $4 AND name < $4 || '~'
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR (finished_version IS NOT DISTINCT FROM version) = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_disabled_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND NOT enabled AND name > $2 AND name >= $4
    AND ($4 = '' OR name < $4 || '~') AND $3::bool IS NOT NULL
    AND ($6::bool IS NULL OR (finished_version IS NOT DISTINCT FROM version) = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_current_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND finished_version IS DISTINCT FROM version AND name > $2
    AND name >= $4 AND ($4 = '' OR name < $4 || '~') AND $6::bool IS NOT NULL
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_finished_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND finished_version = version AND name > $2
    AND name >= $4 AND ($4 = '' OR name < $4 || '~') AND $6::bool IS NOT NULL
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: labelled_jobs
SELECT num FROM horarium.jobs
WHERE labels @> to_jsonb($2::text[]) AND deleted_at IS NULL AND namespace_id = $1 LIMIT $3::int8;

-- name: list_jobs_numbered
SELECT definition FROM horarium.jobs
WHERE num = ANY ($7::int8[]) AND namespace_id = $1 AND deleted_at IS NULL AND name > $2
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR (finished_version IS NOT DISTINCT FROM version) = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_jobs_labelled
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR (finished_version IS NOT DISTINCT FROM version) = $6::bool)
    AND left(name, char_length($4::text)) = $4
    AND labels @> to_jsonb($7::text[])
ORDER BY name LIMIT $5;

-- name: update_jobs
UPDATE horarium.jobs SET version = given.version, enabled = given.enabled, next_fire_at = given.next_fire_at,
    deleted_at = given.deleted_at, labels = given.labels::jsonb, definition = given.definition,
    planned_until = given.planned_until, runs_max = given.runs_max, finished_version = given.finished_version,
    swept_version = given.version
FROM unnest(
    $2::text[], $3::int8[], $4::int8[], $5::bool[], $6::int8[], $7::int8[], $8::text[], $9::text[], $10::int8[],
    $11::int8[], $12::int8[]
) AS given (
    id, version_read, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished_version
)
WHERE jobs.namespace_id = $1 AND jobs.id = ANY ($2::text[]) AND jobs.id = given.id AND jobs.version = given.version_read
RETURNING jobs.id;

-- name: withdraw_runs
DELETE FROM horarium.runs WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state = 0 AND (id, token) IN (
    SELECT given.id, given.token FROM unnest($2::bytea[], $3::int8[]) AS given (id, token)
) RETURNING id;

-- name: add_runs
-- The insert itself looks for the run in `finished`. That no other transaction moves it there meanwhile is ensured by
-- serializability. A run that is finished from the start is moved to history afterwards.
INSERT INTO horarium.runs (
    namespace_id, id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds,
    payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at, disposition,
    prune_at, start_by, execution_seconds, gated, serial, concurrency_key, concurrency_max, unique_key,
    details, progress, error, result, history
)
SELECT $1::int8, given.id, given.queue_id, coalesce(given.priority, 0), given.due_at, given.fire_at, given.created_at,
    given.owner_id, given.cause, given.lease_seconds, given.payload, coalesce(given.state, 0),
    coalesce(given.attempt, 0), coalesce(given.token, 0), given.worker, given.lease_expires_at, given.started_at,
    given.finished_at, given.disposition, given.prune_at, given.start_by, given.execution_seconds,
    given.concurrency_key IS NOT NULL OR (coalesce(given.serial, false) AND given.owner_id IS NOT NULL),
    coalesce(given.serial, false), given.concurrency_key, given.concurrency_max, given.unique_key,
    given.details, given.progress, given.error, given.result, given.history
FROM unnest(
    $2::bytea[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::float8[],
    $11::bytea[], $12::int8[], $13::int8[], $14::int8[], $15::bytea[], $16::int8[], $17::int8[], $18::int8[],
    $19::int8[], $20::int8[], $21::int8[], $22::float8[], $23::bool[], $24::bytea[], $25::int8[], $26::bytea[],
    $27::bytea[], $28::bytea[], $29::bytea[], $30::bytea[], $31::bytea[]
) AS given (
    id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds,
    payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at,
    disposition, prune_at, start_by, execution_seconds, serial, concurrency_key,
    concurrency_max, unique_key, details, progress, error, result, history
)
WHERE NOT EXISTS (SELECT 1 FROM horarium.finished AS f WHERE f.namespace_id = $1 AND f.id = given.id)
    AND NOT EXISTS (SELECT 1 FROM horarium.finished AS f WHERE f.owner_id = given.owner_id AND f.fire_at = given.fire_at)
    AND NOT EXISTS (
        SELECT 1 FROM horarium.finished AS f WHERE f.namespace_id = $1 AND f.unique_key = given.unique_key
    )
ON CONFLICT DO NOTHING RETURNING id;

-- name: list_unfinished_runs_of_queue
SELECT runs.*, few.number AS place, ($6::int8 IS NULL OR queue_id = $6::int8) AND ($7::int8 IS NULL OR state = $7::int8)
    AND ($8::int8 IS NULL OR fire_at >= $8::int8) AND ($9::int8 IS NULL OR fire_at < $9::int8)
    AND runs.id < $2::bytea AND runs.id >= $3::bytea AND $1::int8 IS NOT NULL AND $5::int8 > 0 AS matches
FROM (
    SELECT found.id, count(*) OVER () AS number FROM (
        (
            SELECT id FROM horarium.runs WHERE queue_id = $6::int8 AND state = 0 AND NOT gated
            ORDER BY priority DESC, due_at, id LIMIT $4::int8 + 1
        )
        UNION ALL
        (
            SELECT id FROM horarium.runs WHERE queue_id = $6::int8 AND state = 0 AND gated
            ORDER BY priority DESC, due_at, id LIMIT $4::int8 + 1
        )
        UNION ALL
        (
            SELECT id FROM horarium.runs WHERE namespace_id = $10::int8 AND state > 0 AND queue_id = $6::int8
            ORDER BY lease_expires_at, id LIMIT $4::int8 + 1
        )
    ) AS found LIMIT $4::int8 + 1
) AS few JOIN horarium.runs ON runs.namespace_id = $10::int8 AND runs.id = few.id;

-- name: file_runs
WITH gone AS (
    DELETE FROM horarium.runs WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state > 2 RETURNING runs.*
)
INSERT INTO horarium.finished SELECT * FROM gone;

-- name: lock_gates
-- From here to the end of the transaction no other claim takes gated runs of this namespace.
SELECT namespace_id FROM horarium.gates WHERE namespace_id = $1 FOR UPDATE;

-- name: claim_runs
WITH taken AS (
    UPDATE horarium.runs SET state = 1, token = token + 1, attempt = attempt + 1, worker = $3::bytea,
        started_at = GREATEST($4::int8, runs.due_at),
        lease_expires_at = GREATEST($4::int8, runs.due_at)
            + LEAST(round(lease_seconds * 1000000), round(execution_seconds * 1000000))::int8
    WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state = 0
    RETURNING runs.*
)
SELECT taken.*, jobs.version AS job_version FROM taken LEFT JOIN horarium.jobs ON jobs.num = taken.owner_id;

-- name: settle_runs
-- Changes that leave a run unfinished. Nothing is marked as late here.
UPDATE horarium.runs SET state = given.state, due_at = given.due_at, attempt = given.attempt, worker = given.worker,
    lease_expires_at = given.lease_expires_at, started_at = given.started_at, finished_at = given.finished_at,
    progress = given.progress, error = given.error, result = given.result, disposition = given.disposition,
    prune_at = given.prune_at, history = given.history, start_by = given.start_by, token = given.token
FROM (
    SELECT $1::int8 AS namespace_id, given.*
    FROM unnest(
        $3::bytea[], $4::int8[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::int8[],
        $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::int8[], $19::bytea[],
        $20::int8[], $21::int8[]
    ) AS given (
        id, token_read, state_read, held, state, due_at, attempt, worker, lease_expires_at,
        started_at, finished_at, progress, error, result, disposition, prune_at, history,
        start_by, token
    )
    OFFSET 0
) AS given
WHERE given.token_read + 0 = given.token_read AND runs.namespace_id = given.namespace_id AND runs.id = given.id
    AND runs.namespace_id = $1::int8 AND runs.id = ANY ($3::bytea[])
    AND runs.token = given.token_read AND runs.state = given.state_read
    AND (given.held IS NULL OR (runs.lease_expires_at > $2) = given.held)
RETURNING runs.id;

-- name: finish_runs
-- Changes that finish a run: it leaves `runs` and enters history, in one statement. How it ends, where the health of jobs
-- is counted, is the same as in PostgreSQL.
WITH given (
    id, token_read, state_read, held, state, due_at, attempt, worker, lease_expires_at,
    started_at, finished_at, progress, error, result, disposition, prune_at, history,
    start_by, token
) AS MATERIALIZED (
    SELECT * FROM unnest(
        $3::bytea[], $4::int8[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::int8[],
        $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::int8[], $19::bytea[],
        $20::int8[], $21::int8[]
    )
),
gone AS (
    DELETE FROM horarium.runs WHERE namespace_id = $1 AND id = ANY ($3::bytea[]) AND id IN (
        SELECT here.id FROM given JOIN horarium.runs AS here ON here.namespace_id = $1 AND here.id = given.id
        WHERE here.id = ANY ($3::bytea[]) AND here.token = given.token_read AND here.state = given.state_read
            AND (given.held IS NULL OR (here.lease_expires_at > $2) = given.held)
    )
    RETURNING id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
        priority, cause, gated, serial, concurrency_key, unique_key, payload, details
),
kept AS (
    INSERT INTO horarium.finished (
        namespace_id, id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
        priority, cause, gated, serial, concurrency_key, unique_key, payload, details, state, due_at, attempt, worker,
        lease_expires_at, started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token
    )
    SELECT $1::int8, gone.id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
        priority, cause, gated, serial, concurrency_key, unique_key, payload, details, state, due_at, attempt, worker,
        lease_expires_at, started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token
    FROM gone JOIN given ON given.id = gone.id
    RETURNING namespace_id, owner_id, id, state, finished_at, error, disposition
),

-- name: prune_runs
WITH due AS MATERIALIZED (
    SELECT id FROM horarium.finished WHERE namespace_id = $1 AND prune_at <= $2
    ORDER BY prune_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM horarium.finished WHERE namespace_id = $1 AND id IN (SELECT id FROM due);

-- name: lock_owners
-- No lock is needed: a transaction that adds a run to a job that is being deleted has read the rows deleted here.
SELECT $1::int8 IS NOT NULL;

-- name: forget_jobs
WITH orphans AS MATERIALIZED (
    SELECT num FROM horarium.jobs
    WHERE namespace_id = $1 AND deleted_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM horarium.runs WHERE runs.owner_id = jobs.num)
        AND NOT EXISTS (SELECT 1 FROM horarium.finished WHERE finished.owner_id = jobs.num)
    LIMIT $2
),
forgotten AS (DELETE FROM horarium.jobs WHERE num IN (SELECT num FROM orphans) RETURNING num),
health AS (DELETE FROM horarium.job_health WHERE num IN (SELECT num FROM orphans) RETURNING num)
DELETE FROM horarium.owners WHERE num IN (SELECT num FROM orphans);

-- name: trim_runs
DELETE FROM horarium.finished WHERE namespace_id = $1 AND id IN (
    SELECT old.id FROM horarium.owners CROSS JOIN LATERAL (
        SELECT id FROM horarium.finished WHERE owner_id = owners.num AND id <= (
            SELECT id FROM horarium.finished WHERE owner_id = owners.num ORDER BY id DESC LIMIT 1 OFFSET $3
        )
        ORDER BY id LIMIT $4
    ) AS old
    WHERE owners.namespace_id = $1 AND owners.job_id = $2
);

-- name: count_jobs
-- There are no triggers that could count.
SELECT count(*), count(*) FILTER (WHERE enabled) FROM horarium.jobs WHERE namespace_id = $1 AND deleted_at IS NULL;
