"""The proof on the stores that several machines share, in short: two servers, two workers, thousands of runs in flight.

Both kinds of process are killed and are paused beyond their leases; in the middle the store's server is killed and
started again. For as long as you like: `python -m tests.proof`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.proof.backends import ALWAYS, start_backend
from tests.proof.fleet import Fleet
from tests.proof.harness import Process, World, at_once
from tests.proof.ledger import POWER_LOSS
from tests.proof.receiver import micros
from tests.proof.verdict import Verdict

pytestmark = pytest.mark.slow

SEED = 5
SECONDS = 14
FINAL_SECONDS = 60.0
IN_FLIGHT_MIN = 1_000
LINES_PER_SECOND_MAX = 10


def torment(kind: str, folder: Path, *store_faults: str) -> Verdict:
    """Kill one of each kind, strike the store, pause one of each kind; then settle accounts."""
    with ExitStack() as stack:
        backend = start_backend(kind, folder, stack)
        world = stack.enter_context(World(backend.url, SEED))
        fleet = Fleet(world, backend, folder / "work.log", SEED)
        fleet.start(SECONDS)
        with fleet.observed():
            fleet.fill(2_000, 300)
            in_flight = fleet.in_flight()
            _both(fleet, "kill", world.nodes[0], fleet.workers[1])
            for fault in store_faults:
                fleet.strike_store(fault, 0)
            _both(fleet, "pause", world.nodes[1], fleet.workers[0])
            struck = micros()
            verdict = fleet.judge(FINAL_SECONDS)
        print(f"{kind}: {verdict}")
        verdict.must_hold()
        assert in_flight >= IN_FLIGHT_MIN, "there was not enough under way to prove anything"
        assert verdict.looked_at >= 100
        assert set(verdict.states) == {"completed", "skipped"}
        assert any(arrival.at > struck for arrival in world.receiver.arrivals), "nothing was left to do at the end"
        assert max(node.lines_per_second() for node in world.nodes) <= LINES_PER_SECOND_MAX
        return verdict


def _both(fleet: Fleet, kind: str, *victims: Process) -> None:
    at_once([partial(fleet.strike, kind, victim) for victim in victims])


def test_nothing_is_lost_on_postgres(tmp_path: Path) -> None:
    verdict = torment("postgres", tmp_path, "killed")
    assert not verdict.forgotten


def test_nothing_is_lost_on_redis_but_the_second_that_it_may_forget(tmp_path: Path) -> None:
    """With `everysec` its machine loses its power; then, with `always`, it is killed and may forget nothing."""
    torment("redis", tmp_path, POWER_LOSS, ALWAYS, "killed")


def test_nothing_is_lost_on_mongo(tmp_path: Path) -> None:
    verdict = torment("mongo", tmp_path, "killed")
    assert not verdict.forgotten
