-- uses: shared_reading
-- ARGV: names. Answers their rows, and those of the first names alone if that is as much as a call brings.
return (bring_rows(P .. 'jobs', ids_of_names(ARGV)))
