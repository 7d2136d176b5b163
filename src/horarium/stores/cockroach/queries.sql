-- The queries and parts that differ from those of the PostgreSQL store; all others are shared. Columns of `given` are sent
-- whole, never as a NULL array. Rows to be deleted are found by a subquery, which versions before 23.1 need.

-- part: prefixed
AND left(name, char_length($4::text)) = $4

-- part: has_labels
AND labels @> to_jsonb($7::text[])

-- part: looked_up
{1}.namespace_id = given.namespace_id AND {1}.id = given.id AND {1}.namespace_id = $1::int8 AND {1}.id = ANY ({2})

-- part: place
id

-- part: placed
runs.namespace_id = $10::int8 AND runs.id = few.place

-- part: gate
(CASE WHEN {1}serial THEN coalesce({1}owner_id::text, '') ELSE '' END || '/' || coalesce({1}concurrency_max, 0)::text
    || '/' || coalesce('=' || encode({1}concurrency_key, 'hex'), ''))

-- part: keys
-- Both are counted where they are asked for.

-- part: held
(
    SELECT count(*) FROM horarium.runs AS held
    WHERE held.namespace_id = {1}::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
)

-- part: admitted
(
    this.concurrency_key IS NULL OR {held; {1}} + coalesce((
        SELECT c.held FROM unnest({2}::bytea[], {3}::int8[]) AS c (key, held) WHERE c.key = this.concurrency_key
    ), 0) < coalesce(this.concurrency_max, 0)
)

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
    runs_max, finished
)
SELECT given.num, $1::int8, given.id, given.name, given.version, given.enabled, given.next_fire_at, given.deleted_at,
    given.labels::jsonb, given.definition, given.planned_until, given.runs_max, given.finished
FROM unnest(
    $2::int8[], $3::text[], $4::text[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::text[], $10::text[],
    $11::int8[], $12::int8[], $13::bool[]
) AS given (
    num, id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished
)
ON CONFLICT DO NOTHING RETURNING id;

-- name: labelled_jobs
SELECT num FROM horarium.jobs
WHERE labels @> to_jsonb($2::text[]) AND deleted_at IS NULL AND namespace_id = $1 LIMIT $3::int8;

-- name: list_jobs_numbered
SELECT definition FROM horarium.jobs
WHERE num = ANY ($7::int8[]) AND namespace_id = $1 AND deleted_at IS NULL AND name > $2
    {enabled} {finished} {prefixed}
ORDER BY name LIMIT $5;

-- name: update_jobs
UPDATE horarium.jobs SET version = given.version, enabled = given.enabled, next_fire_at = given.next_fire_at,
    deleted_at = given.deleted_at, labels = given.labels::jsonb, definition = given.definition,
    planned_until = given.planned_until, runs_max = given.runs_max, finished = given.finished
FROM unnest(
    $2::text[], $3::int8[], $4::int8[], $5::bool[], $6::int8[], $7::int8[], $8::text[], $9::text[], $10::int8[],
    $11::int8[], $12::bool[]
) AS given (
    id, version_read, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished
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
    details, progress, error, result, history, deadline
)
SELECT $1::int8, given.id, given.queue_id, coalesce(given.priority, 0), given.due_at, given.fire_at, given.created_at,
    given.owner_id, given.cause, given.lease_seconds, given.payload, coalesce(given.state, 0),
    coalesce(given.attempt, 0), coalesce(given.token, 0), given.worker, given.lease_expires_at, given.started_at,
    given.finished_at, given.disposition, given.prune_at, given.start_by, given.execution_seconds,
    given.concurrency_key IS NOT NULL OR (coalesce(given.serial, false) AND given.owner_id IS NOT NULL),
    coalesce(given.serial, false), given.concurrency_key, given.concurrency_max, given.unique_key,
    given.details, given.progress, given.error, given.result, given.history,
    given.deadline
FROM unnest(
    $2::bytea[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::float8[],
    $11::bytea[], $12::int8[], $13::int8[], $14::int8[], $15::bytea[], $16::int8[], $17::int8[], $18::int8[],
    $19::int8[], $20::int8[], $21::int8[], $22::float8[], $23::bool[], $24::bytea[], $25::int8[], $26::bytea[],
    $27::bytea[], $28::bytea[], $29::bytea[], $30::bytea[], $31::bytea[], $32::int8[]
) AS given (
    id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds,
    payload, state, attempt, token, worker, lease_expires_at, started_at, finished_at,
    disposition, prune_at, start_by, execution_seconds, serial, concurrency_key,
    concurrency_max, unique_key, details, progress, error, result, history, deadline
)
WHERE NOT EXISTS (SELECT 1 FROM horarium.finished AS f WHERE f.namespace_id = $1 AND f.id = given.id)
    AND NOT EXISTS (SELECT 1 FROM horarium.finished AS f WHERE f.owner_id = given.owner_id AND f.fire_at = given.fire_at)
    AND NOT EXISTS (
        SELECT 1 FROM horarium.finished AS f WHERE f.namespace_id = $1 AND f.unique_key = given.unique_key
    )
ON CONFLICT DO NOTHING RETURNING id;

-- name: list_finished_runs_of_queue
{walk; finished; queue_id = $1::int8};

-- name: file_runs
WITH gone AS (
    DELETE FROM horarium.runs WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state > 2 RETURNING runs.*
)
INSERT INTO horarium.finished SELECT * FROM gone;

-- name: lock_gates
-- From here to the end of the transaction no other claim takes gated runs of this namespace.
SELECT namespace_id FROM horarium.gates WHERE namespace_id = $1 FOR UPDATE;

-- name: free_gates
-- For each of these runs that is still pending: how many more its key admits, and whether its order lets it begin.
SELECT this.id, this.concurrency_max - (
        SELECT count(*) FROM horarium.runs AS held
        WHERE held.namespace_id = $1::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
    ),
    NOT this.serial OR this.owner_id IS NULL OR (
        NOT EXISTS (
            SELECT 1 FROM horarium.runs AS earlier
            WHERE earlier.owner_id = this.owner_id AND (earlier.fire_at, earlier.id) < (this.fire_at, this.id)
        )
        AND NOT EXISTS (
            SELECT 1 FROM horarium.runs AS claimed
            WHERE claimed.owner_id = this.owner_id AND claimed.fire_at >= this.fire_at AND claimed.state > 0
        )
    )
FROM horarium.runs AS this
WHERE this.namespace_id = $1::int8 AND this.id = ANY ($2::bytea[]) AND this.state = 0;

-- name: claim_runs
WITH taken AS (
    UPDATE horarium.runs SET {taken; $3; $4; $5}
    WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state = 0
    RETURNING runs.*
)
SELECT taken.*, jobs.version AS job_version FROM taken LEFT JOIN horarium.jobs ON jobs.num = taken.owner_id;

-- name: finish_runs
-- Changes that finish a run: it leaves `runs` and enters history, in one statement.
WITH given ({change}) AS MATERIALIZED (SELECT * FROM unnest({changes})),
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
        {kept}, {ended}
    )
    SELECT $1::int8, gone.id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
        priority, cause, gated, serial, concurrency_key, unique_key, payload, details, {ended}
    FROM gone JOIN given ON given.id = gone.id
    RETURNING namespace_id, owner_id, id, state, finished_at, error, disposition
),
{ends};

-- name: prune_runs
WITH due AS MATERIALIZED (
    SELECT id FROM horarium.finished WHERE namespace_id = $1 AND prune_at <= $2
    ORDER BY prune_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM horarium.finished WHERE namespace_id = $1 AND id IN (SELECT id FROM due);

-- name: lock_owners
-- No lock is needed: a transaction that adds a run to a job that is being deleted has read the rows deleted here.
SELECT $1::int8 IS NOT NULL;

-- name: delete_jobs
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
