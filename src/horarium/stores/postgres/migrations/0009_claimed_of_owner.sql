-- Whether a run of a job is claimed, at a cost that does not depend on how many of the job wait. By fire time: what a claim
-- asks is whether one is that fires later than the first that waits.
CREATE INDEX runs_claimed_of_owner ON horarium.runs (owner_id, fire_at) WHERE state > 0 AND owner_id IS NOT NULL;
