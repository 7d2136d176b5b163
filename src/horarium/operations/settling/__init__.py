"""Claimed runs are written in one way: settled, rescued, released, with their follow-ups."""
