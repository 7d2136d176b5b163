"""Jobs: defined, changed, imported, triggered, backfilled, and their versions."""
