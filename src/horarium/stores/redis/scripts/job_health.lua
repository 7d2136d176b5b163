-- uses: shared_health
-- ARGV: ids of jobs. Answers the health of each.
return read_health(ARGV)
