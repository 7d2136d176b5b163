"""From a store's URL to all that comes with it: the store, the clock that its nodes share, and their wake-ups.

A store on another machine brings its own time, so that a node whose wall clock is wrong neither fires early nor takes a
lease that is still valid; a store that can notify brings its own signals. A message bus is made from its URL here too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from horarium.clock import Clock, SystemClock
from horarium.errors import InvalidSetting
from horarium.ports import Bus, Signal, Store
from horarium.stores.server_clock import ServerClock
from horarium.stores.wakeups import LocalSignal, PolledSignal
from horarium.triggers.words import quote

STORE_SCHEMES = ("memory", "sqlite", "postgresql", "cockroachdb", "redis", "mongodb")
BUS_SCHEMES = ("amqp", "amqps", "nats", "redis", "rediss", "memory")


class Part(Protocol):
    """Something that lives for as long as the store is open."""

    async def start(self) -> None:
        """Begin. Raises StoreUnavailable."""

    async def stop(self) -> None:
        """End."""


class Backend(Struct, frozen=True):
    """A store, and its companions. `parts` are started once the store is open, and stopped before it is closed."""

    store: Store
    clock: Clock
    signal: Signal
    parts: tuple[Part, ...] = ()


STORE_DRIVERS = {
    "postgresql": ("postgres", "asyncpg"),
    "postgres": ("postgres", "asyncpg"),
    "cockroachdb": ("postgres", "asyncpg"),
    "redis": ("redis", "redis", "hiredis"),
    "rediss": ("redis", "redis", "hiredis"),
    "valkey": ("redis", "redis", "hiredis"),
    "valkeys": ("redis", "redis", "hiredis"),
    "mongodb": ("mongo", "pymongo"),
    "mongodb+srv": ("mongo", "pymongo"),
}
BUS_DRIVERS = {
    "amqp": ("rabbitmq", "aio_pika"),
    "amqps": ("rabbitmq", "aio_pika"),
    "nats": ("nats", "nats"),
    "redis": ("redis", "redis", "hiredis"),
    "rediss": ("redis", "redis", "hiredis"),
}
"""For each scheme the extra, and the modules that it installs."""
DISTRIBUTIONS = {"aio_pika": "aio-pika", "nats": "nats-py"}


def need_driver(scheme: str, drivers: Mapping[str, tuple[str, ...]], field: str) -> None:
    """Raises InvalidSetting that says what to install, if a driver is missing."""
    extra, *modules = drivers.get(scheme, ("",))
    for module in modules:
        if sys.modules.get(module) is None and find_spec(module) is None:
            name = DISTRIBUTIONS.get(module, module)
            raise InvalidSetting(
                f"{field}: {scheme}:// needs {name}, which is not installed; pip install 'horarium[{extra}]'",
                field=field,
            )


def scheme_of(url: str) -> str:
    """That of a store's URL. Raises InvalidSetting."""
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        raise InvalidSetting(f"store: it is no URL ({error})", field="store") from None


def make_backend(url: str, namespace: str = "default") -> Backend:
    """What a store's URL names; nothing is opened yet. Raises InvalidSetting."""
    local, scheme = SystemClock(), scheme_of(url)
    need_driver(scheme, STORE_DRIVERS, "store")
    match scheme:
        case "memory":
            from horarium.stores.memory import MemoryStore

            return Backend(MemoryStore(namespace=namespace), local, LocalSignal())
        case "sqlite":
            from horarium.stores.sqlite import SqliteStore
            from horarium.stores.sqlite.touched import Touched

            store = SqliteStore(url, namespace=namespace)
            polled = PolledSignal(Touched(str(store.location.path), store.changed, store.over), store.written)
            return Backend(store, local, polled, (polled,))
        case "postgresql" | "postgres":
            from horarium.stores.postgres import PostgresSignal, PostgresStore

            postgres = PostgresStore(url, namespace=namespace)
            clock, signal = ServerClock(postgres, local), PostgresSignal(url, namespace, written=postgres.written)
            return Backend(postgres, clock, signal, (clock, signal))
        case "cockroachdb":
            from horarium.stores.cockroach import CockroachStore

            cockroach = CockroachStore(url, namespace=namespace)
            server_clock = ServerClock(cockroach, local)
            return Backend(cockroach, server_clock, LocalSignal(), (server_clock,))
        case "redis" | "rediss" | "valkey" | "valkeys":
            from horarium.stores.redis import RedisSignal, RedisStore

            redis = RedisStore(url, namespace=namespace)
            redis_clock, redis_signal = ServerClock(redis, local), RedisSignal(url, namespace, written=redis.written)
            return Backend(redis, redis_clock, redis_signal, (redis_clock, redis_signal))
        case "mongodb" | "mongodb+srv":
            from horarium.stores.mongo import MongoSignal, MongoStore

            mongo = MongoStore(url, namespace=namespace)
            mongo_clock, mongo_signal = (
                ServerClock(mongo, local, tick_seconds=0.001),
                MongoSignal(url, namespace, written=mongo.written),
            )
            return Backend(mongo, mongo_clock, mongo_signal, (mongo_clock, mongo_signal))
        case _:
            raise _unknown(scheme, url)


def backend_of(store: Store) -> Backend:
    """A store that a program made itself, with this machine's clock and wake-ups within this process. Raises
    InvalidSetting."""
    if not hasattr(store, "claim_runs"):
        said = f"store: expected a URL such as 'sqlite:///horarium.db', not {quote(store)}"
        raise InvalidSetting(said, field="store")
    return Backend(store, SystemClock(), LocalSignal())


def _unknown(scheme: str, url: str) -> InvalidSetting:
    known = ", ".join(f"{known}://" for known in STORE_SCHEMES)
    given = scheme or repr(url)
    return InvalidSetting(f"store: {given} is not a store that we know; give one of {known}", field="store")


def make_store(url: str, namespace: str = "default") -> Store:
    """Only the store of a URL, not opened yet. Raises InvalidSetting."""
    return make_backend(url, namespace).store


def missing_file(url: str) -> str | None:
    """The file of this store if it has one and that is not there: opening it would make it. Raises InvalidSetting."""
    if scheme_of(url) != "sqlite":
        return None
    from horarium.stores.sqlite import SqliteStore

    path = SqliteStore(url).location.path
    return None if os.path.exists(path) else path


async def read_collection(
    url: str, collection: str, database: str, newest: tuple[str, int] | None = None
) -> list[dict[str, Any]]:
    """What another system keeps in a collection of a MongoDB; `newest`: only this number, with the greatest of a field.
    Raises InvalidSetting or StoreUnavailable."""
    if urlsplit(url).scheme not in ("mongodb", "mongodb+srv"):
        raise InvalidSetting(f"{url!r} is no MongoDB; give mongodb://HOST/DATABASE", field="url")
    need_driver("mongodb", STORE_DRIVERS, "url")
    from horarium.stores.mongo.elsewhere import read_collection as read

    return await read(url, collection, database, newest)


async def read_jobs(url: str, jobs: str, schedule: str, ready: str) -> tuple[list[bytes], dict[str, float], set[str]]:
    """What another system keeps in a Redis: the values of a hash, the scores of a sorted set, the members of a list.
    Raises InvalidSetting or StoreUnavailable."""
    need_driver("redis", STORE_DRIVERS, "url")
    from horarium.stores.redis.elsewhere import read_jobs as read

    return await read(url, jobs, schedule, ready)


async def contents(url: str, database: str, names_max: int) -> tuple[str, dict[str, list[str]]]:
    """What there is in place of what was to be read: the database of the URL, and names in each database of the server.
    Raises InvalidSetting or StoreUnavailable."""
    if urlsplit(url).scheme in ("mongodb", "mongodb+srv"):
        from horarium.stores.mongo.elsewhere import contents as of_mongo

        return await of_mongo(url, database, names_max)
    from horarium.stores.redis.elsewhere import contents as of_redis

    return await of_redis(url, names_max)


def make_bus(url: str) -> Bus:
    """The bus of a URL, not connected yet. Raises InvalidSetting."""
    scheme = urlsplit(url).scheme
    need_driver(scheme, BUS_DRIVERS, "bus_urls")
    match scheme:
        case "amqp" | "amqps":
            from horarium.buses.rabbitmq import RabbitBus

            return RabbitBus(url)
        case "nats":
            from horarium.buses.nats import NatsBus

            return NatsBus(url)
        case "redis" | "rediss":
            from horarium.buses.redis import RedisBus

            return RedisBus(url)
        case "memory":
            from horarium.buses.memory import MemoryBus, broker_of

            return MemoryBus(broker_of(urlsplit(url).netloc))
    known = ", ".join(f"{scheme}://" for scheme in BUS_SCHEMES)
    given = scheme or "a URL without a scheme"
    raise InvalidSetting(f"bus_urls: {given} is not a bus that we know; give one of {known}", field="bus_urls")
