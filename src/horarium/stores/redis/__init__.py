"""The store in Redis or Valkey, its wake-ups and its clock.

`RedisStore` answers the port; every transition is one Lua script of `scripts/`, so that it happens as a whole.
`Server` is the connection under it; `rows` turns jobs and runs into rows and back.
"""

from horarium.stores.redis.signal import RedisSignal
from horarium.stores.redis.store import RedisStore

__all__ = ["RedisSignal", "RedisStore"]
