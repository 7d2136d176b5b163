"""Attempts and their leases: renewed, lost, and taken back by the rescuer."""
