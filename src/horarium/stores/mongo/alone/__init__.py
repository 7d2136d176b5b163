"""A standalone MongoDB: one process at a time, and an intent log in place of transactions. Nothing else is in here, and
the rest of the store asks only whether its session has a hold."""

from horarium.stores.mongo.alone.holding import Hold, hold, is_held, let_go, succeed

__all__ = ["Hold", "hold", "is_held", "let_go", "succeed"]
