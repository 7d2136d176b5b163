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

-- name: get_jobs_by_id
SELECT jobs.definition
FROM (SELECT $1::int8 AS namespace_id, given.id FROM unnest($2::text[]) AS given (id) OFFSET 0) AS given
JOIN horarium.jobs ON jobs.namespace_id = given.namespace_id AND jobs.id = given.id
        AND jobs.namespace_id = $1::int8 AND jobs.id = ANY ($2::text[]);

-- name: list_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR finished = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_jobs_prefixed
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2 AND name >= $4 AND name < $4 || '~'
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR finished = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_disabled_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND NOT enabled AND name > $2 AND name >= $4
    AND ($4 = '' OR name < $4 || '~') AND $3::bool IS NOT NULL
    AND ($6::bool IS NULL OR finished = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_current_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND NOT finished AND name > $2
    AND name >= $4 AND ($4 = '' OR name < $4 || '~') AND $6::bool IS NOT NULL
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_finished_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND finished AND name > $2
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
    AND ($6::bool IS NULL OR finished = $6::bool)
    AND left(name, char_length($4::text)) = $4
ORDER BY name LIMIT $5;

-- name: list_jobs_labelled
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    AND ($3::bool IS NULL OR enabled = $3::bool)
    AND ($6::bool IS NULL OR finished = $6::bool)
    AND left(name, char_length($4::text)) = $4
    AND labels @> to_jsonb($7::text[])
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

-- name: get_runs
WITH given AS MATERIALIZED (
    SELECT $1::int8 AS namespace_id, given.id FROM unnest($2::bytea[]) AS given (id)
)
SELECT runs.* FROM given JOIN horarium.runs ON runs.namespace_id = given.namespace_id AND runs.id = given.id
UNION ALL
SELECT finished.* FROM given
JOIN horarium.finished ON finished.namespace_id = given.namespace_id AND finished.id = given.id
        AND finished.namespace_id = $1::int8 AND finished.id = ANY ($2::bytea[]);

-- name: list_finished_runs_of_queue
SELECT * FROM (
    SELECT walked.*, ($6::int8 IS NULL OR queue_id = $6::int8) AND ($7::int8 IS NULL OR state = $7::int8)
            AND ($8::int8 IS NULL OR fire_at >= $8::int8) AND ($9::int8 IS NULL OR fire_at < $9::int8) AS matches FROM (
        SELECT finished.*, row_number() OVER (ORDER BY id DESC) AS place FROM horarium.finished
        WHERE queue_id = $1::int8 AND id < $2::bytea AND id >= $3::bytea
        ORDER BY id DESC LIMIT $4::int8
    ) AS walked
) AS looked_at
WHERE matches OR place = $4::int8 ORDER BY id DESC LIMIT $5::int8;

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

-- name: claim_gated
-- The first $12 of one level's due runs that a key or their order might hold back: those of them that it does not,
-- counting what this claim took already: $9 and $10, how many under each key; $11, the owners. Continues after ($7, $8).
-- The last one that may be looked at is given though it is held back (`free` is null then), so that the caller knows
-- where it was broken off. (OFFSET 0: what is asked twice of a run is found once.)
WITH looked_at AS (
    SELECT this.due_at, this.id, this.owner_id, this.serial, this.concurrency_key,
        coalesce(this.concurrency_max, 0) - (
            SELECT count(*) FROM horarium.runs AS held
            WHERE held.namespace_id = $6::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
        ) AS free,
        this.place,
        (this.start_by IS NULL OR this.start_by > $4::int8)
        AND (
            this.concurrency_key IS NULL
            OR (
                SELECT count(*) FROM horarium.runs AS held
                WHERE held.namespace_id = $6::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
            ) + coalesce((SELECT c.held FROM unnest($9::bytea[], $10::int8[]) AS c (key, held) WHERE c.key = this.concurrency_key), 0)
                < coalesce(this.concurrency_max, 0)
        )
        AND (NOT this.serial OR this.owner_id IS NULL OR (
            this.owner_id <> ALL ($11::int8[])
            AND NOT EXISTS (
                SELECT 1 FROM horarium.runs AS earlier
                WHERE earlier.owner_id = this.owner_id AND (earlier.fire_at, earlier.id) < (this.fire_at, this.id)
            )
            AND NOT EXISTS (
                SELECT 1 FROM horarium.runs AS claimed
                WHERE claimed.owner_id = this.owner_id AND claimed.fire_at >= this.fire_at AND claimed.state > 0
            )
        )) AS is_free
    FROM (
        SELECT runs.*, row_number() OVER (ORDER BY due_at, id) AS place
        FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int8 AND state = 0 AND gated
            AND due_at <= $3 AND (due_at, id) > ($7::int8, $8::bytea)
        ORDER BY due_at, id LIMIT $12::int8
    ) AS this OFFSET 0
)
SELECT due_at, id, owner_id, serial, concurrency_key, CASE WHEN is_free THEN free END AS free, place
FROM looked_at
WHERE is_free OR place = $12::int8 ORDER BY due_at, id LIMIT $5;

-- name: claim_gates
-- Of each gate of a level (a key and how many it admits, the order of a job, or both) what may be taken first beyond
-- ($6, $7), as above: a loose scan, so that it does not matter how many wait behind a gate that is shut. Of a job in
-- order that is its first unfinished run, or none. (It goes from the last gate to the first, so that of
-- each it meets what is due last, and not what went by; where all is dead from $6 on, that is passed over in the index.)
WITH RECURSIVE
gates (gate) AS (
    SELECT (
        SELECT (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int8 AND state = 0 AND gated AND due_at >= $6::int8
        ORDER BY (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) DESC LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int8 AND state = 0 AND gated AND due_at >= $6
            AND (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) < gates.gate
        ORDER BY (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) DESC LIMIT 1
    ) FROM gates WHERE gates.gate IS NOT NULL
),
firsts AS (
    SELECT gates.gate, head.serial AND head.owner_id IS NOT NULL AS in_order, head.owner_id, head.id
    FROM gates CROSS JOIN LATERAL (
        SELECT runs.serial, runs.owner_id, runs.id FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int8 AND state = 0 AND gated
            AND (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) = gates.gate
            AND due_at <= $3 AND (due_at, id) > ($6::int8, $7::bytea) AND (start_by IS NULL OR start_by > $4)
        ORDER BY due_at, id LIMIT 1
    ) AS head
)
SELECT this.due_at, this.id, this.owner_id, this.serial, this.concurrency_key,
    coalesce(this.concurrency_max, 0) - (
            SELECT count(*) FROM horarium.runs AS held
            WHERE held.namespace_id = $5::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
        ) AS free,
    firsts.gate
FROM firsts CROSS JOIN LATERAL (
    (
        SELECT runs.* FROM horarium.runs WHERE NOT firsts.in_order AND namespace_id = $5 AND runs.id = firsts.id
        OFFSET 0
    )
    UNION ALL
    (
        SELECT runs.* FROM horarium.runs WHERE firsts.in_order AND runs.owner_id = firsts.owner_id
        ORDER BY fire_at LIMIT 1
    )
) AS this
WHERE this.queue_id = $1 AND this.priority = $2::int8 AND this.state = 0 AND this.gated
    AND (CASE WHEN this.serial THEN coalesce(this.owner_id::text, '') ELSE '' END || '/' || coalesce(this.concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(this.concurrency_key, 'hex'), '')) = firsts.gate
    AND this.due_at <= $3 AND (this.due_at, this.id) > ($6::int8, $7::bytea)
    AND (this.start_by IS NULL OR this.start_by > $4::int8)
    AND (
        this.concurrency_key IS NULL
        OR (
            SELECT count(*) FROM horarium.runs AS held
            WHERE held.namespace_id = $5::int8 AND held.state > 0 AND held.concurrency_key = this.concurrency_key
        )
            + coalesce((SELECT c.held FROM unnest($8::bytea[], $9::int8[]) AS c (key, held) WHERE c.key = this.concurrency_key), 0) < coalesce(this.concurrency_max, 0)
    )
    AND (NOT this.serial OR this.owner_id IS NULL OR (
        this.owner_id <> ALL ($10::int8[])
        AND NOT EXISTS (
            SELECT 1 FROM horarium.runs AS claimed
            WHERE claimed.owner_id = this.owner_id AND claimed.fire_at >= this.fire_at AND claimed.state > 0
        )
    ));

-- name: claim_behind_gate
-- The runs behind the first of a gate that only a key shuts.
SELECT due_at, id, owner_id FROM horarium.runs
WHERE queue_id = $1 AND priority = $2::int8 AND state = 0 AND gated
    AND (CASE WHEN serial THEN coalesce(owner_id::text, '') ELSE '' END || '/' || coalesce(concurrency_max, 0)::text || '/'
        || coalesce('=' || encode(concurrency_key, 'hex'), '')) = $8::text
    AND due_at <= $3 AND (due_at, id) > ($6::int8, $7::bytea) AND (start_by IS NULL OR start_by > $4)
ORDER BY due_at, id LIMIT $5;

-- name: claim_runs
WITH taken AS (
    UPDATE horarium.runs SET state = 1, token = token + 1, attempt = attempt + 1, worker = $3::bytea,
        started_at = GREATEST($4::int8, runs.due_at),
        lease_expires_at = GREATEST($4::int8, runs.due_at) + $5::int8
            + LEAST(round(lease_seconds * 1000000), round(execution_seconds * 1000000))::int8,
        deadline = GREATEST($4::int8, runs.due_at) + $5 + round(execution_seconds * 1000000)::int8
    WHERE namespace_id = $1 AND id = ANY ($2::bytea[]) AND state = 0
    RETURNING runs.*
)
SELECT taken.*, jobs.version AS job_version FROM taken LEFT JOIN horarium.jobs ON jobs.num = taken.owner_id;

-- name: settle_runs
-- Changes that leave a run unfinished. Nothing is marked as late here.
UPDATE horarium.runs SET state = given.state, due_at = given.due_at, attempt = given.attempt, worker = given.worker,
    lease_expires_at = given.lease_expires_at, deadline = given.deadline, started_at = given.started_at,
    finished_at = given.finished_at,
    progress = given.progress, error = given.error, result = given.result, disposition = given.disposition,
    prune_at = given.prune_at, history = given.history, start_by = given.start_by, token = given.token
FROM (
    SELECT $1::int8 AS namespace_id, given.*
    FROM unnest(
        $3::bytea[], $4::int8[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::int8[],
        $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::int8[], $19::bytea[],
        $20::int8[], $21::int8[], $22::int8[]
    ) AS given (
        id, token_read, state_read, held, state, due_at, attempt, worker, lease_expires_at,
        started_at, finished_at, progress, error, result, disposition, prune_at, history,
        start_by, token, deadline
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
    start_by, token, deadline
) AS MATERIALIZED (
    SELECT * FROM unnest(
        $3::bytea[], $4::int8[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::int8[],
        $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::int8[], $19::bytea[],
        $20::int8[], $21::int8[], $22::int8[]
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
        lease_expires_at, started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token,
        deadline
    )
    SELECT $1::int8, gone.id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
        priority, cause, gated, serial, concurrency_key, unique_key, payload, details, state, due_at, attempt, worker,
        lease_expires_at, started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token,
        deadline
    FROM gone JOIN given ON given.id = gone.id
    RETURNING namespace_id, owner_id, id, state, finished_at, error, disposition
),

-- name: amend_runs
-- As `settle_runs`, of runs that are finished already and remain so.
UPDATE horarium.finished SET state = given.state, due_at = given.due_at, attempt = given.attempt,
    worker = given.worker, lease_expires_at = given.lease_expires_at, deadline = given.deadline, started_at = given.started_at,
    finished_at = given.finished_at, progress = given.progress, error = given.error, result = given.result,
    disposition = given.disposition, prune_at = given.prune_at, history = given.history, start_by = given.start_by,
    token = given.token
FROM (
    SELECT $1::int8 AS namespace_id, given.*
    FROM unnest(
        $3::bytea[], $4::int8[], $5::int8[], $6::bool[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::int8[],
        $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::int8[], $19::bytea[],
        $20::int8[], $21::int8[], $22::int8[]
    ) AS given (
        id, token_read, state_read, held, state, due_at, attempt, worker, lease_expires_at,
        started_at, finished_at, progress, error, result, disposition, prune_at, history,
        start_by, token, deadline
    )
    OFFSET 0
) AS given
WHERE given.token_read + 0 = given.token_read AND finished.namespace_id = given.namespace_id AND finished.id = given.id
        AND finished.namespace_id = $1::int8 AND finished.id = ANY ($3::bytea[])
    AND coalesce(finished.token, finished.attempt, 1) = given.token_read AND finished.state = given.state_read
    AND (given.held IS NULL OR (finished.lease_expires_at > $2) = given.held)
RETURNING finished.id;

-- name: heartbeat_runs
-- Leases that go on: `ports.lease_end` for a running run, unchanged for a cancelling one.
UPDATE horarium.runs SET progress = coalesce(given.progress, runs.progress),
    lease_expires_at = CASE WHEN runs.state = 2 THEN runs.lease_expires_at ELSE LEAST(
        $2 + round(runs.lease_seconds * 1000000)::int8, runs.deadline
    ) END
FROM (
    SELECT $1::int8 AS namespace_id, given.*
    FROM unnest($3::bytea[], $4::int8[], $5::bytea[]) AS given (id, token, progress)
    OFFSET 0
) AS given
WHERE given.token + 0 = given.token
    AND runs.namespace_id = given.namespace_id AND runs.id = given.id
        AND runs.namespace_id = $1::int8 AND runs.id = ANY ($3::bytea[]) AND runs.token = given.token AND runs.state <> 0
    AND CASE WHEN runs.state = 2 THEN runs.lease_expires_at ELSE
        coalesce(runs.deadline, 9223372036854775807)
    END > $2::int8
RETURNING runs.id, runs.lease_expires_at, runs.state = 2;

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
