-- Claimed runs under a key, in the order of the transactions that claimed them, so that who knows what is claimed below some
-- number of a transaction need not step over what ended and is not vacuumed.
--
-- `claimed_in`: the number of that transaction * 2^20 + the token of that claim. What is claimed with another token, by code
-- that writes no number, or by a number or a token that has no room, is above all.
ALTER TABLE horarium.runs ADD COLUMN claimed_in int8;

ALTER TABLE horarium.finished ADD COLUMN claimed_in int8;

CREATE INDEX runs_claimed_under_in ON horarium.runs (
    namespace_id, concurrency_key, (CASE WHEN claimed_in & 1048575 = token THEN claimed_in ELSE 9223372036854775807 END)
) WHERE state > 0 AND concurrency_key IS NOT NULL;

-- Every token is 0 or more. That it is said keeps this index for what counts all keys, and says it too: a plan that was made
-- while all was empty could otherwise look up one key here.
CREATE INDEX runs_claimed_in ON horarium.runs (
    namespace_id, (CASE WHEN claimed_in & 1048575 = token THEN claimed_in ELSE 9223372036854775807 END)
) WHERE state > 0 AND concurrency_key IS NOT NULL AND token >= 0;

DROP INDEX horarium.runs_claimed_under;
