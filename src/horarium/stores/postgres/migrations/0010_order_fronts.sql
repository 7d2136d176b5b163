-- Where a claim begins to look whether an earlier run of a job is unfinished. What a job's runs left behind stays in
-- `runs_by_fire` until it is vacuumed, which a snapshot that is held open anywhere prevents.
--
-- `fire_at` says: what is written from now on and fires before is marked as `late`. `clear_at`: all who were writing runs
-- before that was said have ended, and nothing that is unfinished fires before, but what is late. That stays true, for a
-- run is added once and keeps its fire time; so it is written down, for all nodes.
CREATE TABLE horarium.order_fronts (
    fire_at int8 NOT NULL,
    clear_at int8,
    owner_id int4 PRIMARY KEY
) WITH (fillfactor = 50);

-- Also what is claimed: a run is unfinished as long as it is here.
CREATE INDEX runs_late_of_owner ON horarium.runs (owner_id, fire_at) WHERE late AND owner_id IS NOT NULL;

-- As before, and what fires before its job's front is late too.
CREATE OR REPLACE FUNCTION horarium.add_runs(
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
    -- By a statement of its own, whose snapshot is newer than the lock on the table.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        UPDATE horarium.runs SET late = true WHERE namespace_id = space AND id = ANY (added) AND state < 3;
    ELSE
        PERFORM FROM horarium.fronts
        WHERE queue_id = ANY (queue_nums) AND due_at > (SELECT min(given.due_at) FROM unnest(a_due_at) AS given (due_at))
        UNION ALL
        SELECT FROM horarium.order_fronts
        WHERE owner_id = ANY (owner_nums) AND fire_at > (SELECT min(given.fire_at) FROM unnest(a_fire_at) AS given (fire_at))
        LIMIT 1;
        IF FOUND THEN
            UPDATE horarium.runs SET late = true
            WHERE runs.namespace_id = space AND runs.id = ANY (added) AND runs.state < 3 AND (
                runs.state = 0 AND (
                    SELECT fronts.due_at FROM horarium.fronts
                    WHERE fronts.queue_id = runs.queue_id AND fronts.gated = runs.gated
                        AND fronts.priority = runs.priority
                ) > runs.due_at
                OR (
                    SELECT order_fronts.fire_at FROM horarium.order_fronts WHERE order_fronts.owner_id = runs.owner_id
                ) > runs.fire_at
            );
        END IF;
    END IF;
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
