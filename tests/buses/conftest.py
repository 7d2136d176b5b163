"""One real broker of each kind for all tests that need it."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.buses.brokers import MemoryWorkers, NatsWorkers, RabbitWorkers, RedisWorkers, Workers
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    server = RabbitMQ()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    server = Nats()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    server = Redis(appendfsync="always")
    server.start()
    yield server
    server.stop()


NAMES = itertools.count()


@pytest.fixture
def job() -> str:
    """A job of its own for each test."""
    return f"e2e.{next(NAMES)}"


@pytest_asyncio.fixture(
    params=["memory", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rabbitmq", "nats", "redis"))]
)
async def workers(request: pytest.FixtureRequest) -> AsyncIterator[Workers]:
    """Each broker, with the worker's side of it."""
    made: Workers
    match request.param:
        case "memory":
            made = MemoryWorkers()
        case "redis":
            made = RedisWorkers(request.getfixturevalue("redis_server"))
        case "nats":
            made = NatsWorkers(request.getfixturevalue("nats_server"))
        case _:
            made = RabbitWorkers(request.getfixturevalue("rabbitmq"))
    yield made
    await made.hang_up()
