"""Runs: added, listed, cancelled, retried, with their logs and pings."""
