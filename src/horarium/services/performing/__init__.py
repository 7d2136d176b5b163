"""Runs performed by this process: claimed, held for their instant, delivered, and settled in groups."""
