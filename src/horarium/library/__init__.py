"""The edge for programs: `Scheduler`, its synchronous twin, and their keyword arguments."""
