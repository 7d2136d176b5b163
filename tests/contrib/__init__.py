"""Horarium in frameworks."""
