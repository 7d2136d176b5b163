"""Three schedulers, two workers, one of the schedulers killed while it holds runs: every run is final, none is lost.

The long form, with every fault: `python -m tests.buses --minutes 10`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buses.fleet import Fleet
from tests.proof.harness import World
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow

SECONDS = 12


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_the_rest_goes_on_with_the_runs_of_a_scheduler_that_was_killed(
    rabbitmq: RabbitMQ, postgres: Postgres, tmp_path: Path
) -> None:
    with World(postgres.url) as world:
        fleet = Fleet(world, rabbitmq, tmp_path, seed=1)
        fleet.start(nodes=3, workers=2, seconds=SECONDS, ahead_seconds=20)
        fleet.kill_a_node()
        fleet.kill_a_node_that_holds_runs()
        fleet.kill_a_worker()
        wrong, words = fleet.judge()
    print(words)
    assert not wrong, words
