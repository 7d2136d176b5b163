-- uses: shared_reading
-- ARGV: ids. Answers their rows, and those of the first ids alone if that is as much as a call brings.
return (bring_rows(P .. 'jobs', ARGV))
