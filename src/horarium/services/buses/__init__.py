"""Runs that workers behind a message bus perform: reports, cancels, and the wait for a worker."""
