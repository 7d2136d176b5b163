"""The server's clock as a node's own."""

from __future__ import annotations

from horarium.stores.server_clock import ServerClock


class RedisClock(ServerClock):
    """The time of the Redis or Valkey server that a `RedisStore` works on."""
