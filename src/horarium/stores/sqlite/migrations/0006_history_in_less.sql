-- needs: 6
-- form: 2
-- Two of the indexes that every run of history is in, in half the room: by the ten seconds in which a run fired and by the
-- minute in which it may be forgotten, without its id. What is in one of them is sorted when it is read. Code that knows
-- no migration 6 would walk all of history for want of the two that go.
CREATE INDEX runs_of_queue_by_time ON runs (queue_id, fire_at / 10000000);

CREATE INDEX runs_prunable_by_minute ON runs (namespace_id, prune_at / 60000000) WHERE state > 2 AND prune_at IS NOT NULL;

DROP INDEX runs_of_queue;

DROP INDEX runs_prunable_in_order;
