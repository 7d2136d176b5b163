"""One real broker of each kind for all tests that need it."""

from collections.abc import Iterator

import pytest

from tests.servers.rabbitmq import RabbitMQ


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    server = RabbitMQ()
    server.start()
    yield server
    server.stop()
