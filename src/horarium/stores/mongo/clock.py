"""The primary's clock as a node's own."""

from __future__ import annotations

from horarium.stores.server_clock import ServerClock


class MongoClock(ServerClock):
    """The time of the primary that a `MongoStore` works on, which tells it by the millisecond."""

    tick_seconds = 0.001
