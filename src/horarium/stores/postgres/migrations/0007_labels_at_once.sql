-- New entries of this index wait in a list, of 4 MB by default, and a look for a label reads all of it: tens of
-- milliseconds. An eighth of that is read in a few.
ALTER INDEX horarium.jobs_by_label SET (gin_pending_list_limit = 512);
