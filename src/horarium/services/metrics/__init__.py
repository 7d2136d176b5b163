"""Measurements, under the names that /metrics shows, and spans."""
