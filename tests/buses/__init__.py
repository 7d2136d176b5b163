"""Buses: the contract on every broker, and the whole way through a scheduler."""
