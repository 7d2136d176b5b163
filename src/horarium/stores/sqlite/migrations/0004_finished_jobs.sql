-- Jobs that can never fire again. The column is the version under which a job was found to be finished: code of the release
-- before does not write it, and what it changes is not finished any longer until it is looked at again.
ALTER TABLE jobs ADD COLUMN finished_version INTEGER;

CREATE INDEX jobs_current ON jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished_version IS NOT version;

CREATE INDEX jobs_finished ON jobs (namespace_id, name) WHERE deleted_at IS NULL AND finished_version IS version;
