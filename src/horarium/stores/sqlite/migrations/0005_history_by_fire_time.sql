-- A job's history is walked by fire time, in the index that keeps fire times unique. Code of the release before finds it
-- there too, and sorts.
DROP INDEX runs_of_owner;
