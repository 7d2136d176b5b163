"""Stores to measure on, by name: a server is started for the length of the measurement, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from horarium.clock import SystemClock
from horarium.operations.settling.following import Following
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.context import Context
from horarium.ports import Store
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.wakeups import LocalSignal

NAMES = ("sqlite", "postgres", "redis", "valkey", "mongo")


@contextmanager
def a_store(name: str, folder: Path) -> Iterator[str]:
    """The URL of a store: a new file in `folder` or database of a new server for one of `NAMES`, and any other text is
    the URL of a store that is there."""
    if name not in NAMES:
        yield name
    elif name == "sqlite":
        yield f"sqlite:///{folder / secrets.token_hex(4)}.db"
    else:
        server = _server(name)
        server.start()
        try:
            if name == "postgres":
                from tests.stores.postgres_server import ready

                asyncio.run(ready(server.url))
            yield server.url
        finally:
            server.stop()


def _server(name: str):  # type: ignore[no-untyped-def]
    # Each brings its own client, which need not be installed for the others.
    match name:
        case "postgres":
            from tests.servers.postgres import Postgres

            return Postgres()
        case "mongo":
            from tests.servers.mongo import Mongo

            return Mongo()
        case kind:
            from tests.servers.redis import Redis

            return Redis(kind)


def a_planner(store: Store) -> Planner:
    """A planner that plans nothing ahead."""
    clock, signal = SystemClock(), LocalSignal()
    following = Following(store)
    reconciler = Reconciler(Context(store, clock, signal, os.urandom), following)
    return Planner(store, signal, reconciler, following, Telemetry(), ahead_seconds=0.0)
