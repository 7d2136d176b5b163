"""Shared by every operation that writes: audit entries, retries after a lost race, group commit, wake-ups."""
