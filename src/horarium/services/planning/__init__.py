"""Due jobs become runs: the planners, how they divide the jobs, and jobs planned by a clock that was wrong."""
