-- Each statement is a transaction of its own and harmless to repeat; none holds a semicolon but at its end.
-- Jobs that can never fire again. The column is the version under which a job was found to be finished: code of the release
-- before does not write it, and what it changes is not finished any longer until it is looked at again.
ALTER TABLE horarium.jobs ADD COLUMN IF NOT EXISTS finished_version int8;

CREATE INDEX IF NOT EXISTS jobs_current ON horarium.jobs (namespace_id, name)
WHERE deleted_at IS NULL AND finished_version IS DISTINCT FROM version;

CREATE INDEX IF NOT EXISTS jobs_finished ON horarium.jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished_version = version;
