-- How the runs of a job have ended of late.
CREATE TABLE job_health (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    run_id BLOB NOT NULL,
    state INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    error BLOB,
    last_success_at INTEGER,
    failures INTEGER NOT NULL,
    failing_since INTEGER
);

CREATE INDEX jobs_failing ON job_health (namespace_id) WHERE failing_since IS NOT NULL;
