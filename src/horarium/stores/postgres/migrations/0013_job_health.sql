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
