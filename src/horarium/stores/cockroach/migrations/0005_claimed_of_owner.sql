-- Whether a run of a job is claimed, at a cost that does not depend on how many of the job wait.
CREATE INDEX IF NOT EXISTS runs_claimed_of_owner ON horarium.runs (owner_id, fire_at)
WHERE state > 0 AND owner_id IS NOT NULL;
