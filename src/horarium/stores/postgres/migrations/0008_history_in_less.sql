-- needs: 8
-- form: 2
-- History in two thirds of the room. Code that knows no migration 8 can't read such rows, and would walk all of history
-- for want of the two indexes that go.

SET LOCAL statement_timeout = 0;

-- NULL in history: due and made when it fires, a lease of 30 seconds, one attempt, as many tokens as attempts, and
-- nothing of what few runs have.
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

-- Equal keys of an index share one entry, in which each further row takes six bytes. So these are by the minute in which
-- a run may be forgotten and by the ten seconds in which it fired, and what is in one of them is sorted when it is read.
CREATE INDEX IF NOT EXISTS finished_prunable_by_minute ON horarium.finished (
    namespace_id, (LEAST(prune_at / 60000000, 2147483647)::int4)
) WHERE prune_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS finished_of_queue_by_time ON horarium.finished (
    queue_id, (LEAST(fire_at / 10000000, 2147483647)::int4)
);

DROP INDEX horarium.finished_prunable_in_order;

DROP INDEX horarium.finished_of_queue;

-- What is finished from the start is written like that too.
DO $do$
DECLARE
    text text := pg_get_functiondef(
        (SELECT oid FROM pg_proc WHERE proname = 'add_runs' AND pronamespace = 'horarium'::regnamespace)
    );
    whole CONSTANT text := 'INSERT INTO horarium.finished SELECT * FROM gone;';
BEGIN
    ASSERT strpos(text, whole) > 0;
    EXECUTE replace(text, whole, $less$INSERT INTO horarium.finished (
            namespace_id, id, fire_at, due_at, created_at, lease_seconds, token, attempt, priority, cause, gated, serial,
            queue_id, owner_id, state, worker, lease_expires_at, started_at, finished_at, disposition, prune_at,
            start_by, execution_seconds, concurrency_key, concurrency_max, unique_key, payload, details, progress,
            error, result, history, late
        )
        SELECT namespace_id, id, fire_at, nullif(due_at, fire_at), nullif(created_at, fire_at),
            nullif(lease_seconds, 30), nullif(token, attempt), nullif(attempt, 1), nullif(priority, 0),
            nullif(cause, 0), nullif(gated, false), nullif(serial, false),
            queue_id, owner_id, state, worker, lease_expires_at, started_at, finished_at, disposition, prune_at,
            start_by, execution_seconds, concurrency_key, concurrency_max, unique_key, payload, details, progress,
            error, result, history, late
        FROM gone;$less$);
END $do$;
