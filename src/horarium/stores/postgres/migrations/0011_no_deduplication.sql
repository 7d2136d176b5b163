-- No two live rows have the same key in these, so what the server does whenever a page of them is full, to look for equal
-- keys that could share an entry, finds only those of rows that were claimed or have ended: these go with the next vacuum,
-- or before. It was a tenth of what a claim costs.
ALTER INDEX horarium.runs_pkey SET (deduplicate_items = off);

ALTER INDEX horarium.runs_by_fire SET (deduplicate_items = off);

ALTER INDEX horarium.runs_ready SET (deduplicate_items = off);

ALTER INDEX horarium.runs_gated SET (deduplicate_items = off);

ALTER INDEX horarium.runs_claimed SET (deduplicate_items = off);

ALTER INDEX horarium.runs_claimed_of_owner SET (deduplicate_items = off);
