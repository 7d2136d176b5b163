-- Every statement of the store, in the order of `ports.Store`.
-- A query of several rows returns them as one JSON array: each step of a statement gives up Python's global lock
-- and must win it back, so a hundred rows would wait a hundred times on a busy process.
-- `given` is a batch: `VALUES (?, ...)` is written out as often as the batch has rows, some of them padding (all NULL).

-- part: definitions
-- Whole definitions, as one array.
SELECT '[' || ifnull(group_concat(definition, ','), '') || ']' FROM

-- part: named
-- Names that follow ?2 and may begin with ?4. One bound at each end: of two at one end SQLite walks from that which it
-- sees first.
{1}name >= max(?2 || char(0), ?4) AND {1}name < ?4 || char(0x10FFFF)

-- part: prefixed
substr({1}name, 1, length(?4)) = ?4

-- part: jobs_of
{definitions} (
    SELECT definition FROM jobs INDEXED BY jobs_{1}
    WHERE namespace_id = ?1 AND deleted_at IS NULL AND finished = {2} AND {named} AND {prefixed}
        AND (?3 IS NULL OR enabled = ?3) AND ?6 IS NOT NULL
    ORDER BY name LIMIT ?5
)

-- part: matches
(?6 IS NULL OR queue_id = ?6) AND (?7 IS NULL OR state = ?7)
    AND (?8 IS NULL OR fire_at >= ?8) AND (?9 IS NULL OR fire_at < ?9)

-- part: walk
SELECT json_array(json(found), CASE WHEN number < ?5 THEN (
    SELECT hex(id) FROM runs {1}
    WHERE {2} AND id < ?2 AND id >= ?3
    ORDER BY id DESC LIMIT 1 OFFSET ?4 - 1
) END) FROM (
    SELECT json_group_array(json_array(hex(id), num)) AS found, count(*) AS number FROM (
        SELECT id, num FROM (
            SELECT id, num, state, queue_id, fire_at FROM runs {1}
            WHERE {2} AND id < ?2 AND id >= ?3
            ORDER BY id DESC LIMIT ?4
        )
        WHERE {matches}
        LIMIT ?5
    )
)

-- part: gate
-- The gate of a run.
(iif({1}serial IS NULL, '', ifnull({1}owner_id, '')) || '/' || ifnull({1}concurrency_max, 0) || '/'
    || ifnull('=' || {1}concurrency_key, ''))

-- part: keys
-- How many runs are claimed under each key, and what this claim took.
busy (key, held) AS MATERIALIZED (
    SELECT concurrency_key, count(*) FROM runs
    WHERE namespace_id = ?6 AND state IN (1, 2) AND concurrency_key IS NOT NULL GROUP BY concurrency_key
),
counted (key, held) AS MATERIALIZED (SELECT key, value FROM json_each(?9)),
taken (owner_id) AS MATERIALIZED (SELECT value FROM json_each(?10))

-- part: admitted
(this.concurrency_key IS NULL OR ifnull(busy.held, 0) + ifnull(counted.held, 0) < this.concurrency_max)

-- part: with_keys
LEFT JOIN busy ON busy.key = this.concurrency_key LEFT JOIN counted ON counted.key = this.concurrency_key

-- part: none_claimed
this.owner_id NOT IN (SELECT owner_id FROM taken)
AND NOT EXISTS (SELECT 1 FROM runs AS claimed WHERE claimed.owner_id = this.owner_id AND claimed.state IN (1, 2))

-- part: rare
serial, concurrency_key, concurrency_max, unique_key, hex(details), hex(progress), hex(error), hex(result), hex(history),
(payload IS NOT NULL) + 2 * (progress IS NOT NULL) + 4 * (error IS NOT NULL) + 8 * (result IS NOT NULL)

-- part: given_health
WITH given (job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO job_health (num, namespace_id, run_id, state, finished_at, error, last_success_at, failures, failing_since)
SELECT owners.num, owners.namespace_id, given.run_id, given.state, given.finished_at, given.error, given.last_success_at,
    given.failures, given.failing_since
FROM given CROSS JOIN owners ON owners.namespace_id = ? AND owners.job_id = given.job_id
WHERE true

-- part: labelled
SELECT records.name, records.version, records.labels, records.body
FROM record_labels AS lead CROSS JOIN records ON records.namespace_id = lead.namespace_id AND records.name = lead.name
WHERE lead.namespace_id = ?1 AND lead.label = ?5 AND lead.name >= ?2 AND lead.name < ?3
    AND NOT EXISTS (
        SELECT 1 FROM carray(?6) AS wanted
        WHERE NOT EXISTS (
            SELECT 1 FROM record_labels AS other
            WHERE other.namespace_id = lead.namespace_id AND other.name = lead.name AND other.label = wanted.value
        )
    )

-- part: count_waiting
SELECT json_group_array(json_array(queue_id, due, waiting, first_due_at)) FROM (
    SELECT queue_id, sum(due_at <= ?2) AS due, count(*) AS waiting, min(due_at) AS first_due_at
    FROM runs {1} WHERE queue_id IN (SELECT num FROM queues WHERE namespace_id = ?1) AND state = 0 AND gated = {2}
    GROUP BY queue_id
)

-- part: levels
{1} (queue_id, priority) AS (
    SELECT value, (
        SELECT priority FROM runs WHERE queue_id = value AND state = 0 AND gated = {2} ORDER BY priority DESC LIMIT 1
    ) FROM carray(?1)
    UNION ALL
    SELECT {1}.queue_id, (
        SELECT lower.priority FROM runs AS lower
        WHERE lower.queue_id = {1}.queue_id AND lower.state = 0 AND lower.gated = {2} AND lower.priority < {1}.priority
        ORDER BY lower.priority DESC LIMIT 1
    ) FROM {1} WHERE {1}.priority IS NOT NULL
)

-- part: first_due
(
        SELECT due_at FROM runs
        WHERE queue_id = {1}.queue_id AND priority = {1}.priority AND state = 0 AND gated = {2} AND due_at > ?2
        ORDER BY due_at LIMIT 1
    )

-- part: walk_by
-- By this value of a run, through this index.
SELECT json_array(json(found), CASE WHEN number < ?5 THEN (
    SELECT {1} FROM runs INDEXED BY {2}
    WHERE {3}
    ORDER BY {1} DESC LIMIT 1 OFFSET ?4
) END) FROM (
    SELECT json_group_array(json_array(hex(id), num, at)) AS found, count(*) AS number FROM (
        SELECT id, num, at FROM (
            SELECT id, num, state, queue_id, fire_at, {1} AS at FROM runs INDEXED BY {2}
            WHERE {3}
            ORDER BY {1} DESC LIMIT ?4
        )
        WHERE id < ?2 AND id >= ?3 AND {matches}
        LIMIT ?5
    )
)

-- name: check
-- A write that changes a page, so that a full, locked or read-only file shows.
UPDATE namespaces SET checks = checks + 1 WHERE num = ?1;

-- name: intern_namespace
INSERT INTO namespaces (name) VALUES (?1) ON CONFLICT DO NOTHING;

-- name: namespace_number
SELECT num FROM namespaces WHERE name = ?1;

-- name: intern_queue
INSERT INTO queues (namespace_id, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: queue_numbers
SELECT json_group_array(json_array(num, name)) FROM queues
WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2));

-- name: queue_names
SELECT json_group_array(json_array(num, name)) FROM queues WHERE num IN (SELECT value FROM carray(?1));

-- name: intern_worker
INSERT INTO workers (name) VALUES (?1) ON CONFLICT DO NOTHING;

-- name: worker_number
SELECT num FROM workers WHERE name = ?1;

-- name: worker_names
SELECT json_group_array(json_array(num, name)) FROM workers WHERE num IN (SELECT value FROM carray(?1));

-- name: intern_owners
WITH given (job_id, name) AS (VALUES (?, ?))
INSERT INTO owners (namespace_id, job_id, name)
SELECT ?, job_id, name FROM given WHERE job_id IS NOT NULL ON CONFLICT DO NOTHING;

-- name: intern_new_owner
-- The owner of a job that has none yet, if its name is free.
INSERT INTO owners (namespace_id, job_id, name) SELECT ?1, ?2, ?3
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE namespace_id = ?1 AND name = ?3 AND deleted_at IS NULL)
ON CONFLICT DO NOTHING;

-- name: owner_numbers
SELECT json_group_array(json_array(num, lower(hex(job_id)))) FROM owners
WHERE namespace_id = ?1 AND job_id IN (SELECT value FROM carray(?2));

-- name: owner_names
SELECT json_group_array(json_array(num, lower(hex(job_id)), name)) FROM owners
WHERE num IN (SELECT value FROM carray(?1));

-- name: owners_named
SELECT json_group_array(num) FROM owners WHERE namespace_id = ?1 AND name = ?2;

-- name: add_jobs
WITH given (num, id, name, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO jobs (namespace_id, num, id, name, version, enabled, next_fire_at, deleted_at, labels, definition,
    planned_until, runs_max, finished)
SELECT ?, * FROM given WHERE num IS NOT NULL ON CONFLICT DO NOTHING;

-- name: job_taken
SELECT EXISTS (SELECT 1 FROM jobs WHERE namespace_id = ?1 AND id = ?2)
    OR EXISTS (SELECT 1 FROM jobs WHERE namespace_id = ?1 AND name = ?3 AND deleted_at IS NULL);

-- name: get_jobs
{definitions} jobs
WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2)) AND deleted_at IS NULL;

-- name: get_jobs_by_id
{definitions} jobs
WHERE namespace_id = ?1 AND id IN (SELECT value FROM carray(?2));

-- name: job_versions
SELECT json_group_array(json_array(lower(hex(id)), version)) FROM jobs
WHERE namespace_id = ?1 AND id IN (SELECT value FROM carray(?2));

-- name: list_jobs
{definitions} (
    SELECT definition FROM jobs
    WHERE namespace_id = ?1 AND deleted_at IS NULL AND name > ?2
        AND (?3 IS NULL OR enabled = ?3) AND (?6 IS NULL OR finished = ?6) AND {prefixed}
    ORDER BY name LIMIT ?5
);

-- name: list_jobs_prefixed
-- As above; the prefix bounds the walk at both ends.
{definitions} (
    SELECT definition FROM jobs
    WHERE namespace_id = ?1 AND deleted_at IS NULL AND {named}
        AND (?3 IS NULL OR enabled = ?3) AND (?6 IS NULL OR finished = ?6) AND {prefixed}
    ORDER BY name LIMIT ?5
);

-- name: list_current_jobs
{jobs_of; current; 0};

-- name: list_finished_jobs
{jobs_of; finished; 1};

-- name: list_disabled_jobs
{definitions} (
    SELECT definition FROM jobs
    WHERE namespace_id = ?1 AND deleted_at IS NULL AND {named} AND enabled = 0 AND ?3 = 0
        AND (?6 IS NULL OR finished = ?6) AND {prefixed}
    ORDER BY name LIMIT ?5
);

-- name: count_labelled
-- How many jobs have a label, up to ?4 of them.
SELECT count(*) FROM (SELECT 1 FROM job_labels WHERE namespace_id = ?1 AND key = ?2 AND value = ?3 LIMIT ?4);

-- name: list_jobs_labelled
-- One label leads (it is indexed, by name); the rest are looked up for each job that has it.
{definitions} (
    SELECT jobs.definition FROM job_labels AS lead CROSS JOIN jobs ON jobs.num = lead.num
    WHERE lead.namespace_id = ?1 AND lead.key = ?7 AND lead.value = ?8 AND {named; lead.}
        AND (?3 IS NULL OR jobs.enabled = ?3) AND (?6 IS NULL OR jobs.finished = ?6) AND {prefixed; lead.}
        AND NOT EXISTS (
            SELECT 1 FROM json_each(?9) AS wanted
            WHERE NOT EXISTS (
                SELECT 1 FROM job_labels AS other
                WHERE other.num = lead.num AND other.key = wanted.key AND other.value = wanted.value
            )
        )
    ORDER BY lead.name LIMIT ?5
);

-- name: due_jobs
{definitions} (
    SELECT definition FROM jobs
    WHERE namespace_id = ?1 AND next_fire_at <= ?2 AND next_fire_at > ?4 AND deleted_at IS NULL
    ORDER BY next_fire_at, id LIMIT ?3
);

-- name: next_job_at
SELECT next_fire_at FROM jobs
WHERE namespace_id = ?1 AND (next_fire_at, id) > (?2, ?3) AND next_fire_at IS NOT NULL AND deleted_at IS NULL
ORDER BY next_fire_at, id LIMIT 1;

-- name: jobs_ahead
-- By the cursor, then by id, beyond (?2, ?3); and the cursor and id of the ?4th.
SELECT json_array(
    json('[' || ifnull(group_concat(definition, ','), '') || ']'),
    iif(count(*) = ?4, max(planned_until), NULL),
    iif(count(*) = ?4, max(iif(place = ?4, hex(id), NULL)), NULL)
)
FROM (
    SELECT definition, id, planned_until, row_number() OVER () AS place FROM (
        SELECT definition, id, planned_until FROM jobs INDEXED BY jobs_ahead
        WHERE namespace_id = ?1 AND deleted_at IS NULL AND (planned_until, id) > (?2, ?3)
        ORDER BY planned_until, id LIMIT ?4
    )
);

-- name: jobs_trimmed
{definitions} (
    SELECT definition FROM jobs
    WHERE namespace_id = ?1 AND deleted_at IS NULL AND runs_max IS NOT NULL AND name > ?2
    ORDER BY name LIMIT ?3
);

-- name: update_jobs
-- Compare and set: the version read must be the version stored. For the look-up see `settle_runs`.
WITH given (id, version_read, version, enabled, next_fire_at, deleted_at, labels, definition, planned_until, runs_max,
    finished) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE jobs SET version = given.version, enabled = given.enabled, next_fire_at = given.next_fire_at,
    deleted_at = given.deleted_at, labels = given.labels, definition = given.definition,
    planned_until = given.planned_until, runs_max = given.runs_max, finished = given.finished
FROM given
WHERE jobs.num = (SELECT num FROM jobs AS stored WHERE stored.namespace_id = ? AND stored.id = given.id)
    AND jobs.version = given.version_read;

-- name: withdraw_runs
WITH given (id, token) AS (VALUES (?, ?))
DELETE FROM runs WHERE num IN (
    SELECT stored.num FROM given CROSS JOIN runs AS stored ON stored.namespace_id = ? AND stored.id = given.id
    WHERE stored.token = given.token AND stored.state = 0
);

-- name: add_runs
-- A conflict on any unique index leaves the row out; the caller sees it in the count.
WITH given (id, queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause, lease_seconds, lease_micros,
    attempt, token, worker_id, lease_expires_at, deadline, started_at, finished_at, disposition, prune_at, start_by,
    execution_seconds, execution_micros, gated, serial, concurrency_key, concurrency_max, unique_key, payload, details,
    progress, error, result, history)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO runs (namespace_id, id, queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause,
    lease_seconds, lease_micros, attempt, token, worker_id, lease_expires_at, deadline, started_at, finished_at,
    disposition, prune_at, start_by, execution_seconds, execution_micros, gated, serial, concurrency_key,
    concurrency_max, unique_key, payload, details, progress, error, result, history)
SELECT ?, * FROM given WHERE id IS NOT NULL ON CONFLICT DO NOTHING;

-- name: add_plain_runs
-- As above, for runs that have nothing beyond what every new run has.
WITH given (id, queue_id, priority, due_at, fire_at, created_at, owner_id, cause, lease_seconds, lease_micros, payload)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO runs (namespace_id, state, attempt, token, gated, id, queue_id, priority, due_at, fire_at, created_at,
    owner_id, cause, lease_seconds, lease_micros, payload)
SELECT ?, 0, 0, 0, 0, * FROM given WHERE id IS NOT NULL ON CONFLICT DO NOTHING;

-- name: load_runs
-- Every reading of runs ends here: numbers in, rows out in that order. What is rarely set comes as a nested array.
SELECT json_group_array(json_array(
    hex(id), queue_id, priority, state, due_at, fire_at, created_at, owner_id, cause, lease_seconds, attempt,
    token, worker_id, lease_expires_at, started_at, hex(payload),
    CASE WHEN coalesce(finished_at, disposition, prune_at, start_by, execution_seconds, deadline, serial,
            concurrency_max, unique_key, progress, error, result, history) IS NOT NULL
        THEN json_array(finished_at, disposition, prune_at, start_by, execution_seconds, deadline, {rare})
        WHEN details IS NOT NULL THEN hex(details)
        END
)) FROM carray(?1) AS wanted CROSS JOIN runs ON runs.num = wanted.value;

-- name: run_numbers
SELECT json_group_array(num) FROM runs WHERE namespace_id = ?1 AND id IN (SELECT value FROM carray(?2));

-- name: runs_over
SELECT json_group_array(hex(value)) FROM carray(?2) AS given
WHERE NOT EXISTS (SELECT 1 FROM runs WHERE namespace_id = ?1 AND id = given.value AND state < 3);

-- name: run_by_key
SELECT json_group_array(num) FROM runs WHERE namespace_id = ?1 AND unique_key = ?2;

-- name: unfinished_runs
SELECT json_group_array(num) FROM (
    SELECT runs.num AS num FROM carray(?1) AS wanted
    CROSS JOIN runs INDEXED BY runs_unfinished ON runs.owner_id = wanted.value AND runs.state < 3
    ORDER BY runs.owner_id, runs.fire_at, runs.id
);

-- name: list_runs
-- A walk down the ids: below ?2, not below ?3, looking at ?4 rows for ?5 that match; then at which id it was broken off
-- (null: it was not). All of these statements are given the same values; ?1 is what the index begins with.
{walk; ; namespace_id = ?1};

-- name: list_runs_of_queue_by_time
-- By tens of seconds, from ?10 down to ?11; the caller sorts what is in one of them. Broken off in the one that is named
-- besides.
{walk_by; fire_at / 10000000; runs_of_queue_by_time; queue_id = ?1 AND fire_at / 10000000 <= ?10 AND fire_at / 10000000 >= ?11};

-- name: list_runs_of_owner
-- By fire time, whose order is that of the ids but within a millisecond: the caller sorts. ?10 is the highest fire time
-- that an id below ?2 can have. Broken off at a fire time.
{walk_by; fire_at; runs_by_fire; owner_id = ?1 AND fire_at <= ?10 AND fire_at >= ifnull(?8, -9223372036854775808)};

-- name: last_runs_of_owner
SELECT json_group_array(num) FROM (
    SELECT num FROM runs INDEXED BY runs_by_fire
    WHERE owner_id = ?1 AND id < ?2 AND id >= ?3 AND fire_at >= ?5 AND fire_at < ?6 ORDER BY fire_at DESC LIMIT ?4
);

-- name: list_pending_runs
{walk; INDEXED BY runs_pending; namespace_id = ?1 AND state = 0};

-- name: list_ended_runs
{walk; INDEXED BY runs_ended; namespace_id = ?1 AND state = ?7 AND state > 3};

-- name: list_ended_runs_of_queue
{walk; INDEXED BY runs_ended_of_queue; queue_id = ?1 AND state = ?7 AND state > 3};

-- name: list_ended_runs_of_owner
{walk; INDEXED BY runs_ended_of_owner; owner_id = ?1 AND owner_id IS NOT NULL AND state = ?7 AND state > 3};

-- name: list_claimed_runs
-- All that are claimed are looked at: they are no more than all workers together perform.
SELECT json_array(json_group_array(json_array(hex(id), num)), NULL) FROM (
    SELECT id, num FROM runs INDEXED BY runs_claimed
    WHERE namespace_id = ?1 AND state IN (1, 2) AND id < ?2 AND id >= ?3 AND ?4
        AND (?6 IS NULL OR queue_id = ?6) AND state = ?7
        AND (?8 IS NULL OR fire_at >= ?8) AND (?9 IS NULL OR fire_at < ?9)
    ORDER BY id DESC LIMIT ?5
);

-- name: list_unfinished_runs_of_owner
-- By fire time, whose order is that of the ids but within a millisecond: the caller sorts. ?10 is the highest fire time
-- that an id below ?2 can have. Broken off at a fire time.
SELECT json_array(
    json((
        SELECT json_group_array(json_array(hex(id), num)) FROM (
            SELECT id, num, state, queue_id, fire_at FROM runs INDEXED BY runs_unfinished
            WHERE owner_id = ?1 AND state < 3 AND fire_at <= ?10 AND fire_at >= ifnull(?8, -9223372036854775808)
            ORDER BY fire_at DESC LIMIT ?4
        )
        WHERE id < ?2 AND id >= ?3 AND ?5 AND {matches}
    )),
    (
        SELECT fire_at FROM runs INDEXED BY runs_unfinished
        WHERE owner_id = ?1 AND state < 3 AND fire_at <= ?10 AND fire_at >= ifnull(?8, -9223372036854775808)
        ORDER BY fire_at DESC LIMIT 1 OFFSET ?4
    )
);

-- name: claim_levels
-- Which priorities wait in which queue, and what is due first in each after the instant ?2. A loose scan: every level
-- costs two probes of an index, however many runs it has.
WITH RECURSIVE
{levels; ready; 0},
{levels; gated; 1}
SELECT json_group_array(json_array(-priority, is_gated, queue_id, first_due_at)) FROM (
    SELECT priority, 0 AS is_gated, queue_id, {first_due; ready; 0} AS first_due_at FROM ready WHERE priority IS NOT NULL
    UNION ALL
    SELECT priority, 1, queue_id, {first_due; gated; 1} FROM gated WHERE priority IS NOT NULL
) WHERE first_due_at IS NOT NULL;

-- name: first_due
SELECT CASE WHEN ?3 THEN (
    SELECT due_at FROM runs WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1 ORDER BY due_at LIMIT 1
) ELSE (
    SELECT due_at FROM runs WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 0 ORDER BY due_at LIMIT 1
) END;

-- name: claim_level
-- One level's due runs that nothing can hold back, where no other level counts: as `load_runs` gives them, but as they
-- are once `claim_runs` has taken them for ?6 (?7: how far the steady scale is ahead of ?4); and their numbers.
SELECT '[' || ifnull(group_concat(run), '') || ']' FROM (
    SELECT json_array(
        hex(id), queue_id, priority, 1, due_at, fire_at, created_at, owner_id, cause, lease_seconds, attempt + 1,
        token + 1, ?6, max(?4, due_at) + ?7 + min(lease_micros, ifnull(execution_micros, lease_micros)),
        max(?4, due_at),
        hex(payload),
        CASE WHEN coalesce(finished_at, disposition, prune_at, start_by, execution_seconds, serial,
                concurrency_max, unique_key, progress, error, result, history) IS NOT NULL
            THEN json_array(finished_at, disposition, prune_at, start_by, execution_seconds,
                max(?4, due_at) + ?7 + execution_micros, {rare})
            WHEN details IS NOT NULL THEN hex(details)
            END,
        num
    ) AS run FROM runs
    WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 0 AND due_at <= ?3
        AND (start_by IS NULL OR start_by > ?4)
    ORDER BY due_at, id LIMIT ?5
);

-- name: claim_ready
-- One level's due runs that nothing can hold back. Their owners are read (a look into the table) only if ?6 asks.
SELECT json_group_array(json_array(due_at, hex(id), num, owner)) FROM (
    SELECT due_at, id, num, CASE WHEN ?6 THEN owner_id END AS owner FROM runs
    WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 0 AND due_at <= ?3
        AND (start_by IS NULL OR start_by > ?4)
    ORDER BY due_at, id LIMIT ?5
);

-- name: claim_gated
-- The first ?11 of one level's due runs that a key or their order might hold back: those of them that it does not,
-- counting what this claim took already: ?9 is JSON, how many under each key, ?10 JSON, the owners. Continues after
-- (?7, ?8). Besides, where it was broken off before it had ?5 (null: nothing is left).
WITH
{keys}
SELECT json_array(json(found), CASE WHEN number < ?5 THEN json((
    SELECT json_array(due_at, hex(id)) FROM runs
    WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
        AND due_at <= ?3 AND (due_at, id) > (?7, ?8)
    ORDER BY due_at, id LIMIT 1 OFFSET ?11 - 1
)) END) FROM (
    SELECT count(*) AS number, json_group_array(json_array(
        due_at, hex(id), num, owner_id, serial, concurrency_key, free
    )) AS found FROM (
        SELECT this.due_at, this.id, this.num, this.owner_id, this.serial, this.concurrency_key,
            this.concurrency_max - ifnull(busy.held, 0) AS free
        FROM (
            SELECT due_at, id, num, owner_id, serial, concurrency_key, concurrency_max, start_by, fire_at FROM runs
            WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
                AND due_at <= ?3 AND (due_at, id) > (?7, ?8)
            ORDER BY due_at, id LIMIT ?11
        ) AS this
        {with_keys}
        WHERE (this.start_by IS NULL OR this.start_by > ?4)
            AND {admitted}
            AND (this.serial IS NULL OR this.owner_id IS NULL OR (
                {none_claimed}
                AND NOT EXISTS (
                    SELECT 1 FROM runs AS earlier
                    WHERE earlier.owner_id = this.owner_id AND earlier.state < 3
                        AND (earlier.fire_at, earlier.id) < (this.fire_at, this.id)
                )
            ))
        LIMIT ?5
    )
);

-- name: claim_gates
-- Of each gate of a level (a key and how many it admits, the order of a job, or both) what may be taken first beyond
-- (?7, ?8), as above: a loose scan, so that it does not matter how many wait behind a gate that is shut. Of a job in
-- order that is its first unfinished run, or none. ?5 is not looked at.
WITH RECURSIVE
gates (gate) AS (
    SELECT (
        SELECT {gate} FROM runs
        WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
        ORDER BY {gate} LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT {gate} FROM runs
        WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
            AND {gate} > gates.gate
        ORDER BY {gate} LIMIT 1
    ) FROM gates WHERE gate IS NOT NULL
),
{keys},
heads (gate, num) AS (
    SELECT gate, (
        SELECT num FROM runs
        WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
            AND {gate} = gates.gate
            AND due_at <= ?3 AND (due_at, id) > (?7, ?8) AND (start_by IS NULL OR start_by > ?4)
        ORDER BY due_at, id LIMIT 1
    ) FROM gates WHERE gate IS NOT NULL
),
firsts (gate, num) AS (
    SELECT heads.gate, CASE WHEN head.serial IS NULL OR head.owner_id IS NULL THEN head.num ELSE (
        SELECT num FROM runs INDEXED BY runs_unfinished
        WHERE owner_id = head.owner_id AND state < 3 ORDER BY fire_at, id LIMIT 1
    ) END
    FROM heads CROSS JOIN runs AS head ON head.num = heads.num
)
SELECT json_group_array(json_array(
    this.due_at, hex(this.id), this.num, this.owner_id, this.serial, this.concurrency_key,
    this.concurrency_max - ifnull(busy.held, 0), firsts.gate
))
FROM firsts CROSS JOIN runs AS this ON this.num = firsts.num
{with_keys}
WHERE this.queue_id = ?1 AND this.priority = ?2 AND this.state = 0 AND this.gated = 1
    AND {gate; this.} = firsts.gate
    AND this.due_at <= ?3 AND (this.due_at, this.id) > (?7, ?8) AND (this.start_by IS NULL OR this.start_by > ?4)
    AND {admitted}
    AND (this.serial IS NULL OR this.owner_id IS NULL OR (
        {none_claimed}
    ));

-- name: claim_behind_gate
-- The runs behind the first of a gate that only a key shuts.
SELECT json_group_array(json_array(due_at, hex(id), num, owner_id)) FROM (
    SELECT due_at, id, num, owner_id FROM runs
    WHERE queue_id = ?1 AND priority = ?2 AND state = 0 AND gated = 1
        AND {gate} = ?8
        AND due_at <= ?3 AND (due_at, id) > (?6, ?7) AND (start_by IS NULL OR start_by > ?4)
    ORDER BY due_at, id LIMIT ?5
);

-- name: claim_runs
-- `ports.lease_end`, from max(now, due_at), which becomes started_at too; ?4: how far the steady scale is ahead of now.
UPDATE runs SET state = 1, token = token + 1, attempt = attempt + 1, worker_id = ?2, started_at = max(?3, due_at),
    lease_expires_at = max(?3, due_at) + ?4 + min(lease_micros, ifnull(execution_micros, lease_micros)),
    deadline = max(?3, due_at) + ?4 + execution_micros
WHERE num IN (SELECT value FROM carray(?1));

-- name: settle_runs
-- The number is looked up for each given row: as a join, the planner would rather walk all runs for a long batch.
WITH given (id, token_read, state_read, held, state, due_at, attempt, worker_id, lease_expires_at, deadline,
    started_at, finished_at, progress, error, result, disposition, prune_at, history, start_by, token)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE runs SET state = given.state, due_at = given.due_at, attempt = given.attempt, worker_id = given.worker_id,
    lease_expires_at = given.lease_expires_at, deadline = given.deadline, started_at = given.started_at,
    finished_at = given.finished_at, progress = given.progress, error = given.error, result = given.result,
    disposition = given.disposition, prune_at = given.prune_at, history = given.history, start_by = given.start_by,
    token = given.token
FROM given
WHERE runs.num = (SELECT num FROM runs AS stored WHERE stored.namespace_id = ? AND stored.id = given.id)
    AND runs.token = given.token_read AND runs.state = given.state_read
    AND (given.held IS NULL OR (runs.lease_expires_at > ?) IS given.held);

-- name: settle_kind
-- As above, where all but the ids is the same for the whole batch, and what each run was due at stays as it is.
UPDATE runs SET state = ?9, worker_id = ?10, lease_expires_at = ?11, deadline = ?12, finished_at = ?13,
    progress = ?14, error = ?15, result = ?16, disposition = ?17, prune_at = ?18, history = ?19, start_by = ?20
WHERE namespace_id = ?2 AND id IN (SELECT value FROM carray(?1))
    AND token = ?3 AND state = ?4 AND (?5 IS NULL OR (lease_expires_at > ?6) IS ?5)
    AND attempt = ?7 AND started_at IS ?8;

-- name: count_ends
-- What a batch says of the health of its jobs, put together with what is known of it: `model.health.merged`.
{given_health}
ON CONFLICT (num) DO UPDATE SET run_id = excluded.run_id, state = excluded.state, finished_at = excluded.finished_at,
    error = excluded.error, last_success_at = ifnull(excluded.last_success_at, last_success_at),
    failures = excluded.failures + iif(excluded.last_success_at IS NULL, failures, 0),
    failing_since = iif(excluded.last_success_at IS NULL, ifnull(failing_since, excluded.failing_since),
        excluded.failing_since);

-- name: add_health
{given_health}
ON CONFLICT DO NOTHING;

-- name: job_health
SELECT owners.job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
FROM owners CROSS JOIN job_health ON job_health.num = owners.num
WHERE owners.namespace_id = ?1 AND owners.job_id IN (SELECT value FROM carray(?2));

-- name: failing_jobs
SELECT owners.job_id, run_id, state, finished_at, error, last_success_at, failures, failing_since
FROM job_health CROSS JOIN owners ON owners.num = job_health.num
WHERE job_health.namespace_id = ?1 AND failing_since IS NOT NULL LIMIT ?2;

-- name: beating_runs
-- Which leases go on, and their new ends: `ports.lease_end` for a running run, unchanged for a cancelling one.
WITH given (place, id, token) AS (VALUES (?, ?, ?))
SELECT json_group_array(json_array(given.place, runs.num, runs.state, CASE
    WHEN runs.state = 2 THEN runs.lease_expires_at
    ELSE min(? + runs.lease_micros, ifnull(runs.deadline, 9223372036854775807))
    END))
FROM given CROSS JOIN runs ON runs.namespace_id = ? AND runs.id = given.id
WHERE runs.token = given.token AND runs.state IN (1, 2) AND CASE
    WHEN runs.state = 2 THEN runs.lease_expires_at
    ELSE ifnull(runs.deadline, 9223372036854775807)
    END > ?;

-- name: heartbeat_runs
WITH given (num, lease_expires_at) AS (VALUES (?, ?))
UPDATE runs SET lease_expires_at = given.lease_expires_at FROM given WHERE runs.num = given.num;

-- name: write_progress
UPDATE runs SET progress = ?2 WHERE num = ?1;

-- name: expired_runs
SELECT json_group_array(json_array(lease_expires_at, hex(id), num)) FROM (
    SELECT lease_expires_at, id, num FROM runs
    WHERE namespace_id = ?1 AND state IN (1, 2) AND lease_expires_at <= ?2
    ORDER BY lease_expires_at, id LIMIT ?3
);

-- name: unstarted_runs
SELECT json_group_array(json_array(start_by, hex(id), num)) FROM (
    SELECT start_by, id, num FROM runs
    WHERE namespace_id = ?1 AND state = 0 AND start_by <= ?2
    ORDER BY start_by, id LIMIT ?3
);

-- name: next_overdue_at
-- ?3: how far the steady scale is ahead of ?2.
SELECT min(instant) FROM (
    SELECT (
        SELECT lease_expires_at - ?3 FROM runs
        WHERE namespace_id = ?1 AND state IN (1, 2) AND lease_expires_at > ?2 + ?3 ORDER BY lease_expires_at LIMIT 1
    ) AS instant
    UNION ALL
    SELECT (
        SELECT start_by FROM runs
        WHERE namespace_id = ?1 AND state = 0 AND start_by > ?2 ORDER BY start_by LIMIT 1
    )
);

-- name: prune_runs
-- Those of the earliest minutes; in order, where few are asked for.
DELETE FROM runs WHERE num IN (
    SELECT num FROM (
        SELECT num, prune_at, id FROM runs INDEXED BY runs_prunable_by_minute
        WHERE namespace_id = ?1 AND state > 2 AND prune_at IS NOT NULL AND prune_at / 60000000 <= ?2 / 60000000
            AND prune_at <= ?2
        ORDER BY prune_at / 60000000 LIMIT max(?3, 100)
    ) ORDER BY prune_at, id LIMIT ?3
);

-- name: orphaned_jobs
SELECT json_group_array(num) FROM (
    SELECT num FROM jobs
    WHERE namespace_id = ?1 AND deleted_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.owner_id = jobs.num)
    LIMIT ?2
);

-- name: delete_jobs
DELETE FROM jobs WHERE num IN (SELECT value FROM carray(?1));

-- name: delete_health
DELETE FROM job_health WHERE num IN (SELECT value FROM carray(?1));

-- name: delete_owners
DELETE FROM owners WHERE num IN (SELECT value FROM carray(?1));

-- name: trim_runs
-- The newest of those to go is found by its place; the oldest go first.
DELETE FROM runs WHERE num IN (
    SELECT num FROM runs INDEXED BY runs_by_fire
    WHERE owner_id = ?1 AND state > 2 AND fire_at <= (
        SELECT fire_at FROM runs INDEXED BY runs_by_fire
        WHERE owner_id = ?1 AND state > 2 ORDER BY fire_at DESC LIMIT 1 OFFSET ?2
    )
    ORDER BY fire_at LIMIT ?3
);

-- name: get_records
SELECT name, version, labels, body FROM records
WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2));

-- name: list_records
SELECT name, version, labels, body FROM records
WHERE namespace_id = ?1 AND name >= ?2 AND name < ?3 ORDER BY name LIMIT ?4;

-- name: list_records_down
SELECT name, version, labels, body FROM records
WHERE namespace_id = ?1 AND name >= ?2 AND name < ?3 ORDER BY name DESC LIMIT ?4;

-- name: list_records_labelled
-- The label ?5 leads; all of ?6 are looked up for each record that has it.
{labelled}
ORDER BY lead.name LIMIT ?4;

-- name: list_records_labelled_down
{labelled}
ORDER BY lead.name DESC LIMIT ?4;

-- name: record_versions
SELECT name, version FROM records WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2));

-- name: add_records
WITH given (name, version, labels, body) AS (VALUES (?, ?, ?, ?))
INSERT INTO records (namespace_id, name, version, labels, body)
SELECT ?, * FROM given WHERE name IS NOT NULL ON CONFLICT DO NOTHING;

-- name: add_records_told
-- The same, with the names of those that are new.
WITH given (name, version, labels, body) AS (VALUES (?, ?, ?, ?))
INSERT INTO records (namespace_id, name, version, labels, body)
SELECT ?, * FROM given WHERE name IS NOT NULL ON CONFLICT DO NOTHING RETURNING name;

-- name: old_records
SELECT name FROM records WHERE namespace_id = ?1 AND name >= ?2 AND name < ?3 ORDER BY name LIMIT ?4;

-- name: delete_records
DELETE FROM records WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2));

-- name: add_record_labels
WITH given (name, label) AS (VALUES (?, ?))
INSERT INTO record_labels (namespace_id, name, label) SELECT ?, * FROM given WHERE name IS NOT NULL;

-- name: delete_record_labels
DELETE FROM record_labels WHERE namespace_id = ?1 AND name IN (SELECT value FROM carray(?2));

-- name: beat_node
INSERT INTO nodes (namespace_id, name, beat_at, definition) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace_id, name) DO UPDATE SET beat_at = excluded.beat_at, definition = excluded.definition;

-- name: delete_nodes
DELETE FROM nodes WHERE namespace_id = ?1 AND beat_at < ?2;

-- name: list_nodes
{definitions} (
    SELECT definition FROM nodes WHERE namespace_id = ?1 AND beat_at >= ?2 ORDER BY name
);

-- name: count_jobs
-- Triggers keep the counts.
SELECT json_array(jobs, jobs_enabled) FROM namespaces WHERE num = ?1;

-- name: count_ready
{count_waiting; ; 0};

-- name: count_gated
{count_waiting; INDEXED BY runs_gated; 1};

-- name: count_claimed
SELECT json_group_array(json_array(queue_id, running)) FROM (
    SELECT queue_id, count(*) AS running FROM runs WHERE namespace_id = ?1 AND state IN (1, 2) GROUP BY queue_id
);
