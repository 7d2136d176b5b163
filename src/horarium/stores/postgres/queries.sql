-- Every statement of the store, in the order of `ports.Store`.
-- Rows of `runs` and `finished` are read whole (`runs.*`), in the order of their columns, which only ever grow at the end.
-- `given` is a batch, one array for each column, in the order in which its rows are to be locked. Plans are made once,
-- perhaps while all is empty, when any plan seems as good as any other; each row must be looked up by its id all the
-- same. Therefore the namespace is in `given` too, behind an OFFSET 0 that the planner can't look through: without
-- `given` it then has nothing to look up a row by. And conditions like `given.token + 0 = given.token`, which are always
-- true and thought rare, make it take `given` for one row.

-- part: enabled
AND ($3::bool IS NULL OR enabled = $3::bool)

-- part: finished
AND ($6::bool IS NULL OR finished = $6::bool)

-- part: prefixed
AND starts_with(name, $4)

-- part: has_labels
AND labels @> $7::text[]

-- part: looked_up
-- Where a row of a table is one of `given`, whose ids are {2}.
{1}.namespace_id = given.namespace_id AND {1}.id = given.id

-- part: new_runs
$5::bytea[], $6::int4[], $7::int2[], $8::int8[], $9::int8[],
    $10::int8[], $11::int4[], $12::int2[], $13::float8[], $14::bytea[], $15::int2[], $16::int4[], $17::int8[],
    $18::bytea[], $19::int8[], $20::int8[], $21::int8[], $22::int2[], $23::int8[], $24::int8[], $25::float8[],
    $26::bool[], $27::bytea[], $28::int4[], $29::bytea[], $30::bytea[], $31::bytea[], $32::bytea[], $33::bytea[],
    $34::bytea[], $35::int8[]

-- part: matches
($6::int4 IS NULL OR queue_id = $6::int4) AND ($7::int2 IS NULL OR state = $7::int2)
    AND ($8::int8 IS NULL OR fire_at >= $8::int8) AND ($9::int8 IS NULL OR fire_at < $9::int8)

-- part: walk
SELECT * FROM (
    SELECT walked.*, {matches} AS matches FROM (
        SELECT {1}.*, row_number() OVER (ORDER BY id DESC) AS place FROM horarium.{1}
        WHERE {2} AND id < $2::bytea AND id >= $3::bytea
        ORDER BY id DESC LIMIT $4::int8
    ) AS walked
) AS looked_at
WHERE matches OR place = $4::int8 ORDER BY id DESC LIMIT $5::int8

-- part: walk_of_owner
SELECT * FROM (
    SELECT walked.*, {matches}
        AND id < $2::bytea AND id >= $3::bytea{2} AS matches
    FROM (
        SELECT {1}.*, row_number() OVER (ORDER BY fire_at DESC) AS place FROM horarium.{1}
        WHERE owner_id = $1::int4 AND fire_at <= $10::int8
            AND fire_at >= coalesce($8::int8, -9223372036854775808)
        ORDER BY fire_at DESC LIMIT $4::int8
    ) AS walked
) AS looked_at

-- part: place
ctid

-- part: placed
runs.ctid = few.place

-- part: gate
-- The gate of a run.
horarium.gate({1}serial, {1}owner_id, {1}concurrency_max, {1}concurrency_key) COLLATE "C"

-- part: keys
-- How many runs are claimed under each key, and how many this claim took.
busy (key, held) AS MATERIALIZED (
    SELECT concurrency_key, count(*) FROM horarium.runs
    WHERE namespace_id = {1} AND state > 0 AND concurrency_key IS NOT NULL GROUP BY concurrency_key
),
counted (key, held) AS MATERIALIZED (SELECT * FROM unnest({2}::bytea[], {3}::int8[])),

-- part: held
coalesce((SELECT held FROM busy WHERE key = this.concurrency_key), 0)

-- part: admitted
(this.concurrency_key IS NULL OR {held; {1}} + coalesce((SELECT held FROM counted WHERE key = this.concurrency_key), 0) < coalesce(this.concurrency_max, 0))

-- part: none_claimed
NOT EXISTS (
    SELECT 1 FROM horarium.runs AS claimed
    WHERE claimed.owner_id = {1}.owner_id AND claimed.fire_at >= {1}.fire_at AND claimed.state > 0
)

-- part: is_first
NOT EXISTS (
    SELECT 1 FROM horarium.runs AS earlier
    WHERE earlier.owner_id = {1}.owner_id AND (earlier.fire_at, earlier.id) < ({1}.fire_at, {1}.id)
)
AND {none_claimed; {1}}

-- part: taken
state = 1, token = token + 1, attempt = attempt + 1, worker = {1}::bytea,
        started_at = GREATEST({2}::int8, runs.due_at),
        lease_expires_at = GREATEST({2}::int8, runs.due_at) + {3}::int8
            + LEAST(round(lease_seconds * 1000000), round(execution_seconds * 1000000))::int8,
        deadline = GREATEST({2}::int8, runs.due_at) + {3} + round(execution_seconds * 1000000)::int8

-- part: changes
$3::bytea[], $4::int8[], $5::int2[], $6::bool[], $7::int2[], $8::int8[], $9::int4[], $10::bytea[], $11::int8[],
$12::int8[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int2[], $18::int8[], $19::bytea[],
$20::int8[], $21::int8[], $22::int8[]

-- part: change
id, token_read, state_read, held, state, due_at, attempt, worker, lease_expires_at,
started_at, finished_at, progress, error, result, disposition, prune_at, history,
start_by, token, deadline

-- part: settle
UPDATE horarium.{1} SET state = given.state, due_at = given.due_at, attempt = given.attempt, worker = given.worker,
    lease_expires_at = given.lease_expires_at, deadline = given.deadline, started_at = given.started_at,
    finished_at = given.finished_at, progress = given.progress, error = given.error, result = given.result,
    disposition = given.disposition, prune_at = given.prune_at, history = given.history, start_by = given.start_by,
    token = given.token
FROM (SELECT $1::int4 AS namespace_id, given.* FROM unnest({changes}) AS given ({change}) OFFSET 0) AS given
WHERE given.token_read + 0 = given.token_read AND {looked_up; {1}; $3::bytea[]}
    AND {2} = given.token_read AND {1}.state = given.state_read
    AND (given.held IS NULL OR ({1}.lease_expires_at > $2) = given.held)
RETURNING {1}.id

-- part: ends
counted AS (
    {count}
    SELECT DISTINCT ON (owner_id) owner_id, namespace_id, id, state, finished_at, error, success_at,
        count(failed_at) OVER of_job, min(failed_at) OVER of_job
    FROM (
        SELECT *, CASE WHEN state = 4 AND (success_at IS NULL OR finished_at > success_at) THEN finished_at END AS failed_at
        FROM (
            SELECT *, max(CASE WHEN state = 3 THEN finished_at END) OVER (PARTITION BY owner_id) AS success_at
            FROM kept
            WHERE owner_id IS NOT NULL AND state < 5 AND finished_at IS NOT NULL
        ) AS ended
    ) AS ended
    WINDOW of_job AS (PARTITION BY owner_id)
    ORDER BY owner_id, finished_at DESC, (state = 3) DESC, id DESC
    {merge}
)
SELECT array_agg(id) FROM kept

-- part: count
INSERT INTO horarium.job_health AS known (
        num, namespace_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
    )

-- part: merge
-- `model.health.merged`.
ON CONFLICT (num) DO UPDATE SET run_id = excluded.run_id, state = excluded.state, finished_at = excluded.finished_at,
        error = excluded.error, last_success_at = coalesce(excluded.last_success_at, known.last_success_at),
        failures = excluded.failures + CASE WHEN excluded.last_success_at IS NULL THEN known.failures ELSE 0 END,
        failing_since = CASE
            WHEN excluded.last_success_at IS NULL THEN coalesce(known.failing_since, excluded.failing_since)
            ELSE excluded.failing_since
        END
    RETURNING num

-- part: remains
runs.fire_at, runs.created_at, runs.lease_seconds, runs.execution_seconds, runs.queue_id, runs.owner_id,
runs.concurrency_max, runs.priority, runs.cause, runs.gated, runs.serial, runs.concurrency_key,
runs.unique_key, runs.payload, runs.details

-- part: kept
namespace_id, id, fire_at, created_at, lease_seconds, execution_seconds, queue_id, owner_id, concurrency_max,
priority, cause, gated, serial, concurrency_key, unique_key, payload, details

-- part: as_kept
namespace_id, id, fire_at, nullif(created_at, fire_at),
nullif(lease_seconds, 30), execution_seconds, queue_id, owner_id, concurrency_max,
nullif(priority, 0), nullif(cause, 0), nullif(gated, false), nullif(serial, false), concurrency_key,
unique_key, payload, details

-- part: ended
state, due_at, attempt, worker,
lease_expires_at, started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token,
deadline

-- part: labelled
SELECT records.name, records.version, records.labels, records.body
FROM horarium.record_labels AS lead
JOIN horarium.records ON records.namespace_id = lead.namespace_id AND records.name = lead.name
WHERE lead.namespace_id = $1 AND lead.label = $5 AND lead.name >= $2 AND lead.name < $3
    AND NOT EXISTS (
        SELECT 1 FROM unnest($6::bytea[]) AS wanted (label)
        WHERE NOT EXISTS (
            SELECT 1 FROM horarium.record_labels AS other
            WHERE other.namespace_id = lead.namespace_id AND other.name = lead.name AND other.label = wanted.label
        )
    )

-- part: levels
{1} (queue_id, priority) AS (
    SELECT queues.num, (
        SELECT runs.priority FROM horarium.runs WHERE runs.queue_id = queues.num AND state = 0 AND {2}
        ORDER BY runs.priority DESC LIMIT 1
    ) FROM horarium.queues WHERE queues.namespace_id = $1 AND queues.name = ANY ($2::text[])
    UNION ALL
    SELECT {1}.queue_id, (
        SELECT runs.priority FROM horarium.runs
        WHERE runs.queue_id = {1}.queue_id AND state = 0 AND {2} AND runs.priority < {1}.priority
        ORDER BY runs.priority DESC LIMIT 1
    ) FROM {1} WHERE {1}.priority IS NOT NULL
)

-- part: first_due
(
        SELECT runs.due_at FROM horarium.runs
        WHERE runs.queue_id = {1}.queue_id AND runs.priority = {1}.priority AND state = 0 AND {2}
            AND runs.due_at > $3::int8
        ORDER BY runs.due_at LIMIT 1
    )

-- name: check
-- Writes and commits one row, so that a full, locked or read-only server shows.
INSERT INTO horarium.checks (namespace_id, passed) VALUES ($1, 1)
ON CONFLICT (namespace_id) DO UPDATE SET passed = checks.passed + 1;

-- name: intern_namespace
INSERT INTO horarium.namespaces (name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: namespace_number
SELECT num FROM horarium.namespaces WHERE name = $1;

-- name: queue_numbers
SELECT num FROM horarium.queues WHERE namespace_id = $1 AND name = ANY ($2::text[]);

-- name: queue_names
SELECT num, name FROM horarium.queues WHERE num = ANY ($1::int4[]);

-- name: owner_names
SELECT num, job_id, name FROM horarium.owners WHERE num = ANY ($1::int4[]);

-- name: add_jobs
-- A row that conflicts is left out; `at` tells which were not.
INSERT INTO horarium.jobs (
    num, namespace_id, id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until,
    runs_max, finished
)
SELECT (horarium.owner_numbers($1, ARRAY[given.id], ARRAY[given.name]))[1], $1, given.id, given.name, given.version,
    given.enabled, given.next_fire_at, given.deleted_at, given.labels::text[], given.definition, given.planned_until,
    given.runs_max, given.finished
FROM unnest(
    $2::text[], $3::text[], $4::int8[], $5::bool[], $6::int8[], $7::int8[], $8::text[], $9::text[], $10::int8[],
    $11::int8[], $12::bool[]
) AS given (
    id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max, finished
)
ON CONFLICT DO NOTHING RETURNING id;

-- name: get_jobs
SELECT jobs.definition
FROM (SELECT $1::int4 AS namespace_id, given.name FROM unnest($2::text[]) AS given (name) OFFSET 0) AS given
CROSS JOIN LATERAL (
    SELECT definition FROM horarium.jobs
    WHERE jobs.namespace_id = given.namespace_id AND jobs.name = given.name AND deleted_at IS NULL OFFSET 0
) AS jobs;

-- name: get_jobs_by_id
SELECT jobs.definition
FROM (SELECT $1::int4 AS namespace_id, given.id FROM unnest($2::text[]) AS given (id) OFFSET 0) AS given
JOIN horarium.jobs ON {looked_up; jobs; $2::text[]};

-- name: job_health
SELECT owners.job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
FROM horarium.owners JOIN horarium.job_health ON job_health.num = owners.num
WHERE owners.namespace_id = $1 AND owners.job_id = ANY ($2::text[]);

-- name: failing_jobs
SELECT owners.job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
FROM horarium.job_health JOIN horarium.owners ON owners.num = job_health.num
WHERE job_health.namespace_id = $1 AND failing_since IS NOT NULL LIMIT $2;

-- name: add_health
INSERT INTO horarium.job_health (
    num, namespace_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
)
SELECT owners.num, owners.namespace_id, given.run_id, given.state, given.finished_at, given.error, given.last_success_at,
    given.failures, given.failing_since
FROM unnest(
    $2::text[], $3::bytea[], $4::int2[], $5::int8[], $6::bytea[], $7::int8[], $8::int8[], $9::int8[]
) AS given (job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since)
JOIN horarium.owners ON owners.namespace_id = $1 AND owners.job_id = given.job_id
ON CONFLICT DO NOTHING;

-- name: list_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    {enabled} {finished} {prefixed}
ORDER BY name LIMIT $5;

-- name: list_jobs_prefixed
-- As above; the prefix bounds the walk at both ends. Names are ASCII, and each of their characters is below ~.
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2 AND name >= $4 AND name < $4 || '~'
    {enabled} {finished} {prefixed}
ORDER BY name LIMIT $5;

-- name: list_disabled_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND NOT enabled AND name > $2 AND name >= $4
    AND ($4 = '' OR name < $4 || '~') AND $3::bool IS NOT NULL
    {finished} {prefixed}
ORDER BY name LIMIT $5;

-- name: list_current_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND NOT finished AND name > $2
    AND name >= $4 AND ($4 = '' OR name < $4 || '~') AND $6::bool IS NOT NULL
    {enabled} {prefixed}
ORDER BY name LIMIT $5;

-- name: list_finished_jobs
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND finished AND name > $2
    AND name >= $4 AND ($4 = '' OR name < $4 || '~') AND $6::bool IS NOT NULL
    {enabled} {prefixed}
ORDER BY name LIMIT $5;

-- name: labelled_jobs
-- Which jobs have all these labels, up to $3 of them. Behind the OFFSET only the labels are known, so that
-- they alone decide how the jobs are found.
SELECT found.num FROM (
    SELECT num, namespace_id FROM horarium.jobs WHERE labels @> $2::text[] AND deleted_at IS NULL OFFSET 0
) AS found
WHERE found.namespace_id = $1 LIMIT $3::int8;

-- name: list_jobs_numbered
SELECT definition FROM (
    SELECT jobs.* FROM unnest($7::int4[]) WITH ORDINALITY AS given (num, place)
    JOIN horarium.jobs ON jobs.num = given.num AND given.place + 0 = given.place
    OFFSET 0
) AS jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    {enabled} {finished} {prefixed}
ORDER BY name LIMIT $5;

-- name: list_jobs_labelled
-- Where many jobs have the labels: by name, until enough were found.
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND name > $2
    {enabled} {finished} {prefixed}
    {has_labels}
ORDER BY name LIMIT $5;

-- name: due_jobs
-- One more than asked, whether due or not: that is the next one.
(
    SELECT next_fire_at, definition FROM horarium.jobs
    WHERE namespace_id = $1 AND next_fire_at <= $2 AND next_fire_at > $4::int8 AND deleted_at IS NULL
    ORDER BY next_fire_at, id LIMIT $3::int8 + 1
)
UNION ALL
(
    SELECT next_fire_at, NULL FROM horarium.jobs
    WHERE namespace_id = $1 AND next_fire_at > GREATEST($2, $4::int8) AND deleted_at IS NULL
    ORDER BY next_fire_at LIMIT 1
);

-- name: jobs_ahead
-- By the cursor, then by id, beyond ($2, $3).
SELECT definition, planned_until AS at, id FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND version > 0 AND (planned_until, id) > ($2::int8, $3::text)
ORDER BY planned_until, id LIMIT $4;

-- name: jobs_trimmed
SELECT definition FROM horarium.jobs
WHERE namespace_id = $1 AND deleted_at IS NULL AND runs_max IS NOT NULL
    AND name > $2
ORDER BY name LIMIT $3;

-- name: update_jobs
-- Compare and set: the version read must be the version stored.
UPDATE horarium.jobs SET version = given.version, enabled = given.enabled, next_fire_at = given.next_fire_at,
    deleted_at = given.deleted_at,
    labels = CASE WHEN jobs.labels = given.labels::text[] THEN jobs.labels ELSE given.labels::text[] END,
    definition = given.definition, planned_until = given.planned_until, runs_max = given.runs_max,
    finished = given.finished
FROM (
    SELECT $1::int4 AS namespace_id, given.*
    FROM unnest(
        $2::text[], $3::int8[], $4::int8[], $5::bool[], $6::int8[], $7::int8[], $8::text[], $9::text[], $10::int8[],
        $11::int8[], $12::bool[]
    ) AS given (
        id, version_read, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
        finished
    )
    OFFSET 0
) AS given
WHERE given.version + 0 = given.version
    AND jobs.namespace_id = given.namespace_id AND jobs.id = given.id AND jobs.version = given.version_read
RETURNING jobs.id;

-- name: withdraw_runs
DELETE FROM horarium.runs USING (
    SELECT $1::int4 AS namespace_id, given.* FROM unnest($2::bytea[], $3::int8[]) AS given (id, token) OFFSET 0
) AS given
WHERE given.token + 0 = given.token
    AND runs.namespace_id = given.namespace_id AND runs.id = given.id AND runs.token = given.token AND runs.state = 0
RETURNING runs.id;

-- name: add_runs
-- See the function: one statement for any batch, also in a transaction of the caller's own.
SELECT horarium.add_runs(
    $1::int4, $2::text[], $3::text[], $4::text[], {new_runs}
);

-- name: add_runs_elsewhere
-- The same in a transaction of the caller's own: by the name of the namespace; its commit wakes the nodes.
WITH given AS (SELECT $1::text AS namespace, $2::text[] AS queues)
SELECT horarium.add_runs(
    horarium.space_elsewhere(given.namespace, given.queues), given.queues, $3::text[], $4::text[], {new_runs}
), (SELECT count(pg_catalog.pg_notify('horarium', topic)) FROM unnest($36::text[]) AS given (topic))
FROM given;

-- name: add_runs_elsewhere_along
-- The same, with records beside: each goes in with the run it is of, if that is added.
WITH named AS (SELECT $1::text AS namespace, $2::text[] AS queues),
given AS MATERIALIZED (SELECT horarium.space_elsewhere(namespace, queues) AS num, queues FROM named),
done AS (
    SELECT given.num, horarium.add_runs(
        given.num, given.queues, $3::text[], $4::text[], {new_runs}
    ) AS added
    FROM given
),
noted AS (
    INSERT INTO horarium.records (namespace_id, name, version, labels, body)
    SELECT done.num, records.name, records.version, records.labels, records.body
    FROM done, unnest($37::bytea[], $38::bytea[], $39::int8[], $40::bytea[], $41::bytea[])
        AS records (run_id, name, version, labels, body)
    WHERE records.run_id = ANY (done.added)
    ON CONFLICT DO NOTHING RETURNING name
),
labelled AS (
    INSERT INTO horarium.record_labels (namespace_id, name, label)
    SELECT done.num, noted.name, labels.label
    FROM done, noted JOIN unnest($42::bytea[], $43::bytea[]) AS labels (name, label) ON labels.name = noted.name
)
SELECT done.added, (SELECT count(pg_catalog.pg_notify('horarium', topic)) FROM unnest($36::text[]) AS given (topic))
FROM done;

-- name: get_runs
WITH given AS MATERIALIZED (
    SELECT $1::int4 AS namespace_id, given.id FROM unnest($2::bytea[]) AS given (id)
)
SELECT runs.* FROM given JOIN horarium.runs ON runs.namespace_id = given.namespace_id AND runs.id = given.id
UNION ALL
SELECT finished.* FROM given
JOIN horarium.finished ON {looked_up; finished; $2::bytea[]};

-- name: run_by_key
SELECT runs.* FROM horarium.runs WHERE namespace_id = $1 AND unique_key = $2
UNION ALL
SELECT finished.* FROM horarium.finished WHERE namespace_id = $1 AND unique_key = $2;

-- name: unfinished_runs
SELECT runs.* FROM horarium.owners CROSS JOIN LATERAL (
    SELECT runs.* FROM horarium.runs WHERE runs.owner_id = owners.num OFFSET 0
) AS runs
WHERE owners.namespace_id = $1 AND owners.job_id = ANY ($2::text[])
ORDER BY runs.owner_id, runs.fire_at, runs.id;

-- name: list_finished_runs
-- A walk down the ids: below $2, not below $3, looking at $4 rows for $5 that match. The last one that may be looked at
-- is given though it does not match, so that the caller knows where the walk was broken off. All of these statements are
-- given the same values; $1 is what the index begins with.
{walk; finished; namespace_id = $1::int4};

-- name: list_finished_runs_of_queue_by_time
-- By tens of seconds, from $10 down to $11; the caller sorts what is in one of them.
SELECT * FROM (
    SELECT walked.*, {matches}
        AND id < $2::bytea AND id >= $3::bytea AS matches
    FROM (
        SELECT finished.*, LEAST(fire_at / 10000000, 2147483647)::int4 AS tens, row_number() OVER (
            ORDER BY LEAST(fire_at / 10000000, 2147483647)::int4 DESC ROWS UNBOUNDED PRECEDING
        ) AS place FROM horarium.finished
        WHERE queue_id = $1::int4 AND LEAST(fire_at / 10000000, 2147483647)::int4 <= $10::int4
            AND LEAST(fire_at / 10000000, 2147483647)::int4 >= $11::int4
        ORDER BY LEAST(fire_at / 10000000, 2147483647)::int4 DESC LIMIT $4::int8
    ) AS walked
) AS looked_at
WHERE matches OR place = $4::int8 ORDER BY tens DESC LIMIT $5::int8;

-- name: list_finished_runs_within_ten_seconds
-- The newest of a queue in $10, by id, if it has no more than $4 there: `place` is how many were looked at.
SELECT * FROM (
    SELECT few.*, count(*) OVER () AS place, {matches}
        AND id < $2::bytea AND id >= $3::bytea AS matches
    FROM (
        SELECT * FROM horarium.finished
        WHERE queue_id = $1::int4 AND LEAST(fire_at / 10000000, 2147483647)::int4 = $10::int4 LIMIT $4::int8
    ) AS few
) AS looked_at
WHERE matches ORDER BY id DESC LIMIT $5::int8;

-- name: list_finished_runs_of_owner
-- By fire time, whose order is that of the ids but within a millisecond: the caller sorts. $10 is the highest fire time
-- that an id below $2 can have.
{walk_of_owner; finished}
WHERE matches OR place = $4::int8 ORDER BY fire_at DESC LIMIT $5::int8;

-- name: list_ended_runs
{walk; finished; namespace_id = $1::int4 AND state = $7::int2 AND state > 3};

-- name: list_ended_runs_of_queue
{walk; finished; queue_id = $1::int4 AND state = $7::int2 AND state > 3};

-- name: list_ended_runs_of_owner
{walk; finished; owner_id = $1::int4 AND owner_id IS NOT NULL AND state = $7::int2 AND state > 3};

-- name: list_unfinished_runs
{walk; runs; namespace_id = $1::int4};

-- name: list_claimed_runs
-- All that are claimed are looked at: they are no more than all workers together perform. The order within is that of
-- their index, so that they are not looked for among all that wait.
SELECT claimed.*, 0::int8 AS place, true AS matches FROM (
    SELECT runs.* FROM horarium.runs WHERE namespace_id = $1::int4 AND state > 0 ORDER BY lease_expires_at, id OFFSET 0
) AS claimed
WHERE id < $2::bytea AND id >= $3::bytea AND $4::int8 > 0
    AND ($6::int4 IS NULL OR queue_id = $6::int4) AND state = $7::int2
    AND ($8::int8 IS NULL OR fire_at >= $8::int8) AND ($9::int8 IS NULL OR fire_at < $9::int8)
ORDER BY id DESC LIMIT $5::int8;

-- name: list_unfinished_runs_of_queue
-- All that is unfinished in a queue of the namespace $10, if that is no more than $4; else one more row than that.
SELECT runs.*, few.number AS place, {matches}
    AND id < $2::bytea AND id >= $3::bytea AND $1::int4 IS NOT NULL AND $5::int8 > 0 AS matches
FROM (
    SELECT found.place, count(*) OVER () AS number FROM (
        (
            SELECT {place} AS place FROM horarium.runs WHERE queue_id = $6::int4 AND state = 0 AND NOT gated
            ORDER BY priority DESC, due_at, id LIMIT $4::int8 + 1
        )
        UNION ALL
        (
            SELECT {place} FROM horarium.runs WHERE queue_id = $6::int4 AND state = 0 AND gated
            ORDER BY priority DESC, due_at, id LIMIT $4::int8 + 1
        )
        UNION ALL
        (
            SELECT {place} FROM horarium.runs WHERE namespace_id = $10::int4 AND state > 0 AND queue_id = $6::int4
            ORDER BY lease_expires_at, id LIMIT $4::int8 + 1
        )
    ) AS found LIMIT $4::int8 + 1
) AS few JOIN horarium.runs ON {placed};

-- name: list_unfinished_runs_of_owner
-- By fire time, whose order is that of the ids but within a millisecond: the caller sorts. $10 is the highest fire time
-- that an id below $2 can have.
{walk_of_owner; runs;  AND $5::int8 > 0}
WHERE matches OR place = $4::int8 ORDER BY place = $4::int8 DESC, id DESC LIMIT $5::int8 + 1;

-- name: last_runs
-- Of each job the newest runs, by fire time, in [$5, $6); only ids below $3 and not below $4.
SELECT runs.* FROM horarium.owners CROSS JOIN LATERAL (
    SELECT runs.* FROM horarium.runs
    WHERE runs.owner_id = owners.num AND runs.fire_at >= $5::int8 AND runs.fire_at < $6::int8
    ORDER BY runs.fire_at DESC LIMIT $7::int8
) AS runs
WHERE owners.namespace_id = $1::int4 AND owners.name = ANY ($2::text[])
UNION ALL
SELECT finished.* FROM horarium.owners CROSS JOIN LATERAL (
    SELECT finished.* FROM horarium.finished
    WHERE finished.owner_id = owners.num AND finished.fire_at >= $5::int8 AND finished.fire_at < $6::int8
        AND finished.id < $3::bytea AND finished.id >= $4::bytea
    ORDER BY finished.fire_at DESC LIMIT $7::int8
) AS finished
WHERE owners.namespace_id = $1::int4 AND owners.name = ANY ($2::text[]);

-- name: owners_named
SELECT num FROM horarium.owners WHERE namespace_id = $1::int4 AND name = $2::text;

-- part: due_levels
{1} (queue_id, priority, due_at) AS (
    SELECT queues.num, first.* FROM horarium.queues CROSS JOIN LATERAL (
        SELECT runs.priority, runs.due_at FROM horarium.runs
        WHERE runs.queue_id = queues.num AND state = 0 AND {2}
        ORDER BY runs.priority DESC, runs.due_at LIMIT 1
    ) AS first WHERE queues.namespace_id = $1 AND queues.name = ANY ($2::text[])
    UNION ALL
    SELECT {1}.queue_id, lower.* FROM {1} CROSS JOIN LATERAL (
        SELECT runs.priority, runs.due_at FROM horarium.runs
        WHERE runs.queue_id = {1}.queue_id AND state = 0 AND {2} AND runs.priority < {1}.priority
        ORDER BY runs.priority DESC, runs.due_at LIMIT 1
    ) AS lower
)

-- part: claim
{due_levels; gated; runs.gated},
next (due_at, gated_due) AS MATERIALIZED (
    SELECT LEAST(
        (SELECT min((
            SELECT runs.due_at FROM horarium.runs
            WHERE runs.queue_id = ready.queue_id AND runs.priority = ready.priority AND state = 0 AND NOT gated
                AND runs.due_at > $6::int8 ORDER BY runs.due_at LIMIT 1
        )) FROM ready),
        (SELECT min((
            SELECT runs.due_at FROM horarium.runs
            WHERE runs.queue_id = gated.queue_id AND runs.priority = gated.priority AND state = 0 AND runs.gated
                AND runs.due_at > $6 ORDER BY runs.due_at LIMIT 1
        )) FROM gated)
    ), EXISTS (SELECT 1 FROM gated WHERE gated.due_at <= $6)
),
levels (number) AS MATERIALIZED (
    SELECT count(*) FROM ready WHERE ready.due_at <= $6 AND NOT (SELECT gated_due FROM next)
),
wanted (queue_id, priority, due_at, number) AS MATERIALIZED (
    SELECT queue_id, priority, due_at, $3::int8 FROM ready
    WHERE ready.due_at <= $6 AND (SELECT number FROM levels) = 1
    UNION ALL
    SELECT queue_id, priority, min(due_at), count(*) FROM (
        SELECT ready.queue_id, ready.priority, due.due_at FROM ready CROSS JOIN LATERAL (
            SELECT runs.due_at, runs.id FROM horarium.runs
            WHERE runs.queue_id = ready.queue_id AND runs.priority = ready.priority AND state = 0 AND NOT gated
                AND runs.due_at >= ready.due_at AND runs.due_at <= $6
                AND (runs.start_by IS NULL OR runs.start_by > $5::int8)
            ORDER BY runs.due_at, runs.id LIMIT $3
        ) AS due
        WHERE ready.due_at <= $6 AND (SELECT number FROM levels) > 1
        ORDER BY ready.priority DESC, due.due_at, due.id LIMIT $3
    ) AS first GROUP BY queue_id, priority
),
chosen (place) AS MATERIALIZED (
    SELECT due.ctid FROM wanted CROSS JOIN LATERAL (
        SELECT runs.ctid FROM horarium.runs
        WHERE runs.queue_id = wanted.queue_id AND runs.priority = wanted.priority AND state = 0 AND NOT gated
            AND runs.due_at >= wanted.due_at AND runs.due_at <= $6 AND (runs.start_by IS NULL OR runs.start_by > $5)
        ORDER BY runs.due_at, runs.id LIMIT wanted.number FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
),
taken AS (
    UPDATE horarium.runs SET {taken; $4; $5; $7}
    FROM chosen
    WHERE runs.ctid = chosen.place AND runs.state = 0
    RETURNING runs.*
)
SELECT taken.*, next.due_at AS next_due_at, next.gated_due, jobs.version AS job_version,
    CASE WHEN next.gated_due THEN (
        SELECT array_agg(ARRAY[-due.priority, due.is_gated, due.queue_id, due.due_at]::int8[]) FROM (
            SELECT priority, 0 AS is_gated, queue_id, due_at FROM ready
            UNION ALL
            SELECT priority, 1, queue_id, due_at FROM gated
        ) AS due WHERE due.due_at <= $6
    ) END AS levels
FROM next LEFT JOIN taken ON true LEFT JOIN horarium.jobs ON jobs.num = taken.owner_id

-- name: claim_at_once
-- The whole claim, where nothing that is due can be held back. Levels (a priority of a queue) are found by a loose
-- scan, two probes of an index each. If there are several, how many rows each is to give is counted without locks; then
-- that many of its rows that no other transaction holds are locked, so that claimers neither wait for each other nor
-- lock more than they take. What is locked is found again by its place, which can't change any more. The first probe of
-- a level steps over rows that were claimed since the last vacuum, and all that follow begin where it arrived. Beside
-- the runs, in no order: when the next one is due, whether gated runs are due (then nothing was taken, and the levels
-- are told in which something is due), and the version of each run's job. There is always a row.
WITH RECURSIVE
{due_levels; ready; NOT runs.gated},
{claim};

-- name: claim_at_marks
-- The same, where low-water marks are given ($8 to $10: queue, priority, instant).
WITH RECURSIVE
known (queue_id, priority, due_at) AS MATERIALIZED (
    SELECT * FROM unnest($8::int4[], $9::int2[], $10::int8[]) AS given (queue_id, priority, due_at)
),
gaps (queue_id, above, below) AS MATERIALIZED (
    SELECT queue_id, priority::int4, lag(priority::int4, 1, 32768) OVER (PARTITION BY queue_id ORDER BY priority DESC)
    FROM known
    UNION ALL
    SELECT queues.num, -32769, coalesce((SELECT min(priority)::int4 FROM known WHERE queue_id = queues.num), 32768)
    FROM horarium.queues WHERE queues.namespace_id = $1 AND queues.name = ANY ($2::text[])
),
others (queue_id, above, priority, due_at) AS (
    SELECT gaps.queue_id, gaps.above, first.* FROM gaps CROSS JOIN LATERAL (
        SELECT runs.priority, runs.due_at FROM horarium.runs
        WHERE runs.queue_id = gaps.queue_id AND state = 0 AND NOT gated
            AND runs.priority < gaps.below AND runs.priority > gaps.above
        ORDER BY runs.priority DESC, runs.due_at LIMIT 1
    ) AS first
    UNION ALL
    SELECT others.queue_id, others.above, lower.* FROM others CROSS JOIN LATERAL (
        SELECT runs.priority, runs.due_at FROM horarium.runs
        WHERE runs.queue_id = others.queue_id AND state = 0 AND NOT gated
            AND runs.priority < others.priority AND runs.priority > others.above
        ORDER BY runs.priority DESC, runs.due_at LIMIT 1
    ) AS lower
),
ready (queue_id, priority, due_at) AS MATERIALIZED (
    SELECT * FROM (
        SELECT known.queue_id, known.priority, (
            SELECT runs.due_at FROM horarium.runs
            WHERE runs.queue_id = known.queue_id AND runs.priority = known.priority AND state = 0 AND NOT gated
                AND runs.due_at >= known.due_at ORDER BY runs.due_at LIMIT 1
        ) AS due_at FROM known
    ) AS first WHERE due_at IS NOT NULL
    UNION ALL
    SELECT queue_id, priority, due_at FROM others
),
{claim};

-- name: lock_gates
-- One after the other in the order given. Namespaces share the numbers of a lock, which costs them no more than a wait.
SELECT pg_catalog.pg_advisory_xact_lock(1752134259, $1::int4 % 16777216 * 128 + given.gate)
FROM unnest($2::int4[]) AS given (gate);

-- name: free_gates
-- For each of these runs that is still pending: how many more its key admits, and whether its order lets it begin: no
-- unfinished run of its job is earlier, and none is claimed, which is another index. (OFFSET 0: a plan that was made for
-- an empty table might otherwise walk all of it.)
WITH given AS MATERIALIZED (
    SELECT this.id, this.owner_id, this.fire_at, this.serial, this.concurrency_key, this.concurrency_max
    FROM (SELECT $1::int4 AS namespace_id, given.* FROM unnest($2::bytea[]) AS given (id) OFFSET 0) AS wanted
    CROSS JOIN LATERAL (
        SELECT runs.* FROM horarium.runs WHERE runs.namespace_id = wanted.namespace_id AND runs.id = wanted.id OFFSET 0
    ) AS this
    WHERE this.state = 0
),
busy (key, held) AS MATERIALIZED (
    SELECT keys.key, (
        SELECT count(*) FROM horarium.runs WHERE namespace_id = $1 AND concurrency_key = keys.key AND state > 0
    )
    FROM (SELECT DISTINCT concurrency_key AS key FROM given WHERE concurrency_key IS NOT NULL) AS keys
)
SELECT given.id, given.concurrency_max - (SELECT held FROM busy WHERE key = given.concurrency_key),
    NOT given.serial OR given.owner_id IS NULL OR (
        {is_first; given}
    )
FROM given;

-- name: claim_levels
-- Which priorities wait in which queue, and what is due first in each after the instant $3. A loose scan: every level
-- costs two probes of an index, however many runs it has.
WITH RECURSIVE
{levels; ready; NOT gated},
{levels; gated; runs.gated}
SELECT rank, is_gated, queue_id, first_due_at FROM (
    SELECT -priority AS rank, 0 AS is_gated, queue_id, {first_due; ready; NOT gated} AS first_due_at FROM ready WHERE priority IS NOT NULL
    UNION ALL
    SELECT -priority, 1, queue_id, {first_due; gated; runs.gated} FROM gated WHERE priority IS NOT NULL
) AS levels WHERE first_due_at IS NOT NULL;

-- name: first_due
-- Of a queue that has several numbers (`queues.apart`), over all of them.
SELECT min(CASE WHEN given.gated THEN (
    SELECT runs.due_at FROM horarium.runs
    WHERE runs.queue_id = queues.num AND runs.priority = given.priority AND state = 0 AND runs.gated
    ORDER BY runs.due_at LIMIT 1
) ELSE (
    SELECT runs.due_at FROM horarium.runs
    WHERE runs.queue_id = queues.num AND runs.priority = given.priority AND state = 0 AND NOT runs.gated
    ORDER BY runs.due_at LIMIT 1
) END)
FROM unnest($2::text[], $3::int2[], $4::bool[]) WITH ORDINALITY AS given (queue, priority, gated, place)
LEFT JOIN horarium.queues ON queues.namespace_id = $1 AND queues.name = given.queue
GROUP BY given.place ORDER BY given.place;

-- name: claim_ready
-- One level's due runs that nothing can hold back; those that another claimer is taking are left to it.
SELECT due_at, id, owner_id FROM horarium.runs
WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND NOT gated AND due_at <= $3
    AND (start_by IS NULL OR start_by > $4)
ORDER BY due_at, id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED;

-- name: claim_gated
-- The first $12 of one level's due runs that a key or their order might hold back: those of them that it does not,
-- counting what this claim took already: $9 and $10, how many under each key; $11, the owners. Continues after ($7, $8).
-- The last one that may be looked at is given though it is held back (`free` is null then), so that the caller knows
-- where it was broken off. (OFFSET 0: what is asked twice of a run is found once.)
WITH
{keys; $6; $9; $10}
looked_at AS (
    SELECT this.due_at, this.id, this.owner_id, this.serial, this.concurrency_key,
        coalesce(this.concurrency_max, 0) - {held; $6} AS free,
        this.place,
        (this.start_by IS NULL OR this.start_by > $4::int8)
        AND {admitted; $6; $9; $10}
        AND (NOT this.serial OR this.owner_id IS NULL OR (
            this.owner_id <> ALL ($11::int4[])
            AND {is_first; this}
        )) AS is_free
    FROM (
        SELECT runs.*, row_number() OVER (ORDER BY due_at, id) AS place
        FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND gated
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
        SELECT {gate} FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND gated AND due_at >= $6::int8
        ORDER BY {gate} DESC LIMIT 1
    ) COLLATE "C"
    UNION ALL
    SELECT (
        SELECT {gate} FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND gated AND due_at >= $6
            AND {gate} < gates.gate
        ORDER BY {gate} DESC LIMIT 1
    ) COLLATE "C" FROM gates WHERE gates.gate IS NOT NULL
),
{keys; $5; $8; $9}
firsts AS (
    SELECT gates.gate, head.serial AND head.owner_id IS NOT NULL AS in_order, head.owner_id, head.id
    FROM gates CROSS JOIN LATERAL (
        SELECT runs.serial, runs.owner_id, runs.id FROM horarium.runs
        WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND gated
            AND {gate} = gates.gate
            AND due_at <= $3 AND (due_at, id) > ($6::int8, $7::bytea) AND (start_by IS NULL OR start_by > $4)
        ORDER BY due_at, id LIMIT 1
    ) AS head
)
SELECT this.due_at, this.id, this.owner_id, this.serial, this.concurrency_key,
    coalesce(this.concurrency_max, 0) - {held; $5} AS free,
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
WHERE this.queue_id = $1 AND this.priority = $2::int2 AND this.state = 0 AND this.gated
    AND {gate; this.} = firsts.gate
    AND this.due_at <= $3 AND (this.due_at, this.id) > ($6::int8, $7::bytea)
    AND (this.start_by IS NULL OR this.start_by > $4::int8)
    AND {admitted; $5; $8; $9}
    AND (NOT this.serial OR this.owner_id IS NULL OR (
        this.owner_id <> ALL ($10::int4[])
        AND {none_claimed; this}
    ));

-- name: claim_behind_gate
-- The runs behind the first of a gate that only a key shuts.
SELECT due_at, id, owner_id FROM horarium.runs
WHERE queue_id = $1 AND priority = $2::int2 AND state = 0 AND gated
    AND {gate} = $8::text
    AND due_at <= $3 AND (due_at, id) > ($6::int8, $7::bytea) AND (start_by IS NULL OR start_by > $4)
ORDER BY due_at, id LIMIT $5;

-- name: claim_runs
-- `ports.lease_end`, from max(now, due_at), which becomes started_at too; $5: how far the steady scale is ahead of now.
-- Rows are found first, each by a probe: a plan that
-- was made when the table was believed to be empty would walk all of it to join it with these ids. One that another
-- transaction changes meanwhile is left out, as if it were taken.
WITH chosen (place) AS MATERIALIZED (
    SELECT due.ctid FROM (
        SELECT $1::int4 AS namespace_id, given.id FROM unnest($2::bytea[]) AS given (id) OFFSET 0
    ) AS given
    CROSS JOIN LATERAL (
        SELECT runs.ctid FROM horarium.runs
        WHERE runs.namespace_id = given.namespace_id AND runs.id = given.id AND runs.state = 0 OFFSET 0
    ) AS due
),
taken AS (
    UPDATE horarium.runs SET {taken; $3; $4; $5}
    FROM chosen
    WHERE runs.ctid = chosen.place AND runs.state = 0
    RETURNING runs.*
)
SELECT taken.*, jobs.version AS job_version FROM taken LEFT JOIN horarium.jobs ON jobs.num = taken.owner_id;

-- name: lock_runs
-- In the order given, for a transaction whose statements will write them in another.
SELECT 1 FROM (
    SELECT $1::int4 AS namespace_id, given.*
    FROM unnest($2::bytea[]) WITH ORDINALITY AS given (id, number) OFFSET 0
) AS given
JOIN horarium.runs ON runs.namespace_id = given.namespace_id AND runs.id = given.id
WHERE given.number + 0 = given.number
FOR UPDATE OF runs;

-- name: lock_jobs
SELECT 1 FROM (
    SELECT $1::int4 AS namespace_id, given.*
    FROM unnest($2::text[]) WITH ORDINALITY AS given (id, number) OFFSET 0
) AS given
JOIN horarium.jobs ON jobs.namespace_id = given.namespace_id AND jobs.id = given.id
WHERE given.number + 0 = given.number
FOR UPDATE OF jobs;

-- name: settle_runs
-- Changes that leave a run unfinished.
{settle; runs; runs.token};

-- name: finish_runs
-- Changes that finish a run: it leaves `runs` and enters history, where defaults are NULL, in one statement, and the health
-- of its job changes (see `model.health`): the run of a batch that ended last in a job is found, and how many failed since
-- one completed. The ids of those that were written.
WITH gone AS (
    DELETE FROM horarium.runs USING (
        SELECT $1::int4 AS namespace_id, given.* FROM unnest({changes}) AS given ({change}) OFFSET 0
    ) AS given
    WHERE given.token_read + 0 = given.token_read
        AND runs.namespace_id = given.namespace_id AND runs.id = given.id AND runs.token = given.token_read AND runs.state = given.state_read
        AND (given.held IS NULL OR (runs.lease_expires_at > $2) = given.held)
    RETURNING {remains}, given.*
),
kept AS (
    INSERT INTO horarium.finished (
        {kept}, {ended}
    )
    SELECT {as_kept}, state, nullif(due_at, fire_at),
        nullif(attempt, 1), worker, lease_expires_at, started_at, finished_at, progress,
        error, result, disposition, prune_at, history, start_by, nullif(token, attempt), deadline
    FROM gone RETURNING namespace_id, owner_id, id, state, finished_at, error
),
{ends};

-- part: finish_alike
WITH gone AS (
    DELETE FROM horarium.runs USING (
        SELECT $1::int4 AS namespace_id, given.id, coalesce(given.token, $21) AS token, given.due_at,
            coalesce(given.attempt, $22) AS attempt, coalesce(given.started_at, $23) AS started_at, given.result,
            coalesce(given.prune_at, $24) AS prune_at
        FROM unnest($3::bytea[], $4::int8[], $5::int8[], $6::int4[], $7::int8[], $8::bytea[], $9::int8[]) AS given (
            id, token, due_at, attempt, started_at, result, prune_at
        )
        OFFSET 0
    ) AS given
    WHERE given.token + 0 = given.token AND runs.namespace_id = given.namespace_id AND runs.id = given.id
        AND runs.token = given.token AND runs.state = $10::int2
        AND ($11::bool IS NULL OR (runs.lease_expires_at > $2) = $11)
    RETURNING {remains}, coalesce(given.due_at, runs.due_at) AS due_at, given.namespace_id,
        given.id, given.token, given.attempt, given.started_at, given.result, given.prune_at
),
kept AS (
    INSERT INTO horarium.finished (
        {kept}, due_at, attempt, started_at,
        result, prune_at, token, state, worker, lease_expires_at, finished_at, progress, error, disposition, history,
        start_by, deadline
    )
    SELECT {as_kept}, nullif(due_at, fire_at),
        nullif(attempt, 1), started_at, result, prune_at,
        nullif(token, attempt), $12::int2, $13::bytea, $14::int8, $15::int8, $16::bytea,
        $17::bytea, $18::int2, $19::bytea, $20::int8, $25::int8
    FROM gone RETURNING owner_id, id
)

-- name: finish_alike
-- As above, where all but these few values are the same for the whole batch. What even of these is the same for all is
-- given once ($21 to $24), and its array is NULL; without an array of theirs, instants at which runs were due stay as they
-- are. The ids of those that were written.
{finish_alike}
SELECT array_agg(id) FROM kept;

-- name: finish_alike_of_jobs
-- As above, where some of the runs are of jobs, whose health changes: all of them ended in one instant and state.
{finish_alike},
counted AS (
    {count}
    SELECT owner_id, $1, (array_agg(id ORDER BY id DESC))[1], $12, $15, $17, CASE $12 WHEN 3 THEN $15 END,
        CASE $12 WHEN 4 THEN count(*) ELSE 0 END, CASE $12 WHEN 4 THEN $15 END
    FROM kept WHERE owner_id IS NOT NULL AND $12 < 5 AND $15 IS NOT NULL
    GROUP BY owner_id ORDER BY owner_id
    {merge}
)
SELECT array_agg(id) FROM kept;

-- name: amend_runs
-- As `settle_runs`, of runs that are finished already and remain so.
{settle; finished; coalesce(finished.token, finished.attempt, 1)};

-- name: heartbeat_runs
-- Leases that go on: `ports.lease_end` for a running run, unchanged for a cancelling one.
UPDATE horarium.runs SET progress = coalesce(given.progress, runs.progress),
    lease_expires_at = CASE WHEN runs.state = 2 THEN runs.lease_expires_at ELSE LEAST(
        $2 + round(runs.lease_seconds * 1000000)::int8, runs.deadline
    ) END
FROM (
    SELECT $1::int4 AS namespace_id, given.*
    FROM unnest($3::bytea[], $4::int8[], $5::bytea[]) AS given (id, token, progress)
    OFFSET 0
) AS given
WHERE given.token + 0 = given.token
    AND {looked_up; runs; $3::bytea[]} AND runs.token = given.token AND runs.state <> 0
    AND CASE WHEN runs.state = 2 THEN runs.lease_expires_at ELSE
        coalesce(runs.deadline, 9223372036854775807)
    END > $2::int8
RETURNING runs.id, runs.lease_expires_at, runs.state = 2;

-- name: overdue_runs
-- $4: how far the steady scale is ahead of $2, the present.
SELECT runs.* FROM (
    (
        SELECT lease_expires_at - $4::int8 AS overdue_at, id FROM horarium.runs
        WHERE namespace_id = $1 AND state > 0 AND lease_expires_at <= $2::int8 + $4
        ORDER BY lease_expires_at, id LIMIT $3
    )
    UNION ALL
    (
        SELECT start_by, id FROM horarium.runs
        WHERE namespace_id = $1 AND state = 0 AND start_by <= $2
        ORDER BY start_by, id LIMIT $3
    )
    ORDER BY overdue_at, id LIMIT $3
) AS overdue CROSS JOIN LATERAL (
    SELECT runs.* FROM horarium.runs WHERE runs.namespace_id = $1 AND runs.id = overdue.id OFFSET 0
) AS runs
ORDER BY overdue.overdue_at, overdue.id;

-- name: next_overdue_at
-- $3: how far the steady scale is ahead of $2.
SELECT LEAST(
    (
        SELECT lease_expires_at - $3::int8 FROM horarium.runs
        WHERE namespace_id = $1 AND state > 0 AND lease_expires_at > $2::int8 + $3 ORDER BY lease_expires_at LIMIT 1
    ),
    (
        SELECT start_by FROM horarium.runs
        WHERE namespace_id = $1 AND state = 0 AND start_by > $2 ORDER BY start_by LIMIT 1
    )
);

-- name: prune_runs
-- Those of the earliest minutes; in order, where few are asked for.
DELETE FROM horarium.finished WHERE ctid = ANY (ARRAY(
    SELECT place FROM (
        SELECT ctid AS place, prune_at, id FROM horarium.finished
        WHERE namespace_id = $1 AND prune_at <= $2::int8 AND prune_at IS NOT NULL
            AND LEAST(prune_at / 60000000, 2147483647)::int4 <= LEAST($2::int8 / 60000000, 2147483647)::int4
        ORDER BY LEAST(prune_at / 60000000, 2147483647)::int4 LIMIT GREATEST($3::int8, 100) FOR UPDATE SKIP LOCKED
    ) AS earliest ORDER BY prune_at, id LIMIT $3::int8
));

-- name: fold_job_counts
-- Many sums become one, unless another node is doing so.
WITH old AS (
    DELETE FROM horarium.job_counts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM horarium.job_counts WHERE namespace_id = $1 LIMIT 1000 FOR UPDATE SKIP LOCKED
    )) RETURNING jobs, enabled
)
INSERT INTO horarium.job_counts (namespace_id, jobs, enabled)
SELECT $1, sum(jobs), sum(enabled) FROM old HAVING count(*) > 0;

-- name: lock_owners
-- A transaction that adds runs to jobs holds this lock shared. If it is taken, deleting is left for later.
SELECT pg_try_advisory_xact_lock(1752134258, $1);

-- name: delete_jobs
WITH orphans AS (
    SELECT num FROM horarium.jobs
    WHERE namespace_id = $1 AND deleted_at IS NOT NULL
        AND (SELECT true FROM horarium.runs WHERE runs.owner_id = jobs.num LIMIT 1) IS NULL
        AND (SELECT true FROM horarium.finished WHERE finished.owner_id = jobs.num LIMIT 1) IS NULL
    LIMIT $2
),
forgotten AS (DELETE FROM horarium.jobs USING orphans WHERE jobs.num = orphans.num),
health AS (DELETE FROM horarium.job_health USING orphans WHERE job_health.num = orphans.num)
DELETE FROM horarium.owners USING orphans WHERE owners.num = orphans.num;

-- name: trim_runs
-- The newest of those to go is found by its place; the oldest go first. What is being amended goes the next time: it is
-- not waited for, since the order of places is not that of ids.
DELETE FROM horarium.finished WHERE ctid = ANY (ARRAY(
    SELECT finished.ctid FROM horarium.owners CROSS JOIN LATERAL (
        SELECT ctid FROM horarium.finished WHERE owner_id = owners.num AND fire_at <= (
            SELECT fire_at FROM horarium.finished WHERE owner_id = owners.num ORDER BY fire_at DESC LIMIT 1 OFFSET $3
        )
        ORDER BY fire_at LIMIT $4 FOR UPDATE SKIP LOCKED
    ) AS finished
    WHERE owners.namespace_id = $1 AND owners.job_id = $2
));

-- name: get_records
SELECT records.name, records.version, records.labels, records.body
FROM (SELECT $1::int4 AS namespace_id, given.name FROM unnest($2::bytea[]) AS given (name) OFFSET 0) AS given
JOIN horarium.records ON records.namespace_id = given.namespace_id AND records.name = given.name;

-- name: list_records
SELECT name, version, labels, body FROM horarium.records
WHERE namespace_id = $1 AND name >= $2 AND name < $3 ORDER BY name LIMIT $4;

-- name: list_records_down
SELECT name, version, labels, body FROM horarium.records
WHERE namespace_id = $1 AND name >= $2 AND name < $3 ORDER BY name DESC LIMIT $4;

-- name: list_records_labelled
-- The label $5 leads; all of $6 are looked up for each record that has it.
{labelled}
ORDER BY lead.name LIMIT $4;

-- name: list_records_labelled_down
{labelled}
ORDER BY lead.name DESC LIMIT $4;

-- name: record_versions
-- Until the end of the transaction no other one writes these.
SELECT records.name, records.version
FROM (SELECT $1::int4 AS namespace_id, given.name FROM unnest($2::bytea[]) AS given (name) OFFSET 0) AS given
JOIN horarium.records ON records.namespace_id = given.namespace_id AND records.name = given.name
ORDER BY records.name FOR UPDATE OF records;

-- name: add_records
INSERT INTO horarium.records (namespace_id, name, version, labels, body)
SELECT $1::int4, given.* FROM unnest($2::bytea[], $3::int8[], $4::bytea[], $5::bytea[])
    AS given (name, version, labels, body)
ON CONFLICT DO NOTHING RETURNING name;

-- name: old_records
SELECT name FROM horarium.records
WHERE namespace_id = $1 AND name >= $2 AND name < $3 ORDER BY name LIMIT $4 FOR UPDATE SKIP LOCKED;

-- name: delete_records
DELETE FROM horarium.records WHERE namespace_id = $1 AND name = ANY ($2::bytea[]);

-- name: add_record_labels
INSERT INTO horarium.record_labels (namespace_id, name, label)
SELECT $1::int4, given.* FROM unnest($2::bytea[], $3::bytea[]) AS given (name, label);

-- name: delete_record_labels
DELETE FROM horarium.record_labels WHERE namespace_id = $1 AND name = ANY ($2::bytea[]);

-- name: beat_node
INSERT INTO horarium.nodes (namespace_id, name, beat_at, definition) VALUES ($1, $2, $3, $4)
ON CONFLICT (namespace_id, name) DO UPDATE SET beat_at = excluded.beat_at, definition = excluded.definition;

-- name: delete_nodes
DELETE FROM horarium.nodes WHERE namespace_id = $1 AND beat_at < $2;

-- name: list_nodes
SELECT definition FROM horarium.nodes WHERE namespace_id = $1 AND beat_at >= $2 ORDER BY name;

-- name: count_jobs
SELECT coalesce(sum(jobs), 0)::int8, coalesce(sum(enabled), 0)::int8 FROM horarium.job_counts WHERE namespace_id = $1;

-- name: count_runs
-- Counted by the numbers of queues first, so that each name is looked up once, and not for each run.
SELECT queues.name, sum(due)::int8, sum(later)::int8, sum(claimed)::int8, min(oldest_due_at), count(*) OVER ()
FROM (
    SELECT queue_id,
        count(*) FILTER (WHERE state = 0 AND due_at <= $2) AS due,
        count(*) FILTER (WHERE state = 0 AND due_at > $2) AS later,
        count(*) FILTER (WHERE state > 0) AS claimed,
        min(due_at) FILTER (WHERE state = 0 AND due_at <= $2) AS oldest_due_at
    FROM horarium.runs WHERE namespace_id = $1 GROUP BY queue_id OFFSET 0
) AS counted JOIN horarium.queues ON queues.num = counted.queue_id
GROUP BY queues.name ORDER BY min(oldest_due_at) IS NULL, min(oldest_due_at), queues.name LIMIT $3;
