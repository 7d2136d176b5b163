"""Clean-up: retention, finished jobs, edits of many runs, and the work of nodes that died."""
