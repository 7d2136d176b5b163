-- How the runs of a job have ended of late.
CREATE TABLE IF NOT EXISTS horarium.job_health (
    num int8 PRIMARY KEY,
    namespace_id int8 NOT NULL,
    run_id bytea NOT NULL,
    state int8 NOT NULL,
    finished_at int8 NOT NULL,
    error bytea,
    last_success_at int8,
    failures int8 NOT NULL,
    failing_since int8
);

CREATE INDEX IF NOT EXISTS jobs_failing ON horarium.job_health (namespace_id) WHERE failing_since IS NOT NULL;
