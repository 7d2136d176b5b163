"""Horarium: a durable, distributed job scheduler."""
