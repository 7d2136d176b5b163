-- uses: shared_health
-- ARGV: how many at most. Answers ids of jobs that fail, and the health of each.
local limit = tonumber(ARGV[1])
local found = limit > 0 and call('SRANDMEMBER', P .. 'failing', limit) or {}
return {found, read_health(found)}
