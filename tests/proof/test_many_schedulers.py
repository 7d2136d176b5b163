"""Four servers with all roles on one store, killed and started again at random: nothing is lost, nothing done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.harness import Node, World, at_once, let_pass
from tests.proof.jobs import SECOND, Plan, mixed_plan, whole_second
from tests.proof.ledger import Ledger
from tests.proof.nemesis import KILL, PAUSE, TERMINATE, Nemesis
from tests.proof.receiver import micros
from tests.proof.verdict import Verdict
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow

NODES = 4
SEED = 7
STRIKES = 2
STALL_SECONDS = 5.0
RESUME_SECONDS = 5.0
LATE_SECONDS_MAX = 15.0
CPU_SHARE_MAX = 0.20
LINES_PER_SECOND_MAX = 10


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def judged(world: World, plan: Plan) -> Verdict:
    world.wait_over(plan.end, 40)
    verdict = Ledger(
        plan.owed, world.api.runs(), world.receiver.arrivals, world.receiver.reports, world.all_faults()
    ).judge()
    print(verdict)
    verdict.must_hold()
    assert verdict.states["completed"] == verdict.runs
    assert max(verdict.late_seconds) <= LATE_SECONDS_MAX
    return verdict


def must_be_quiet(world: World) -> None:
    """I5: nobody is left in a hot loop."""
    since = micros()
    shares: dict[str, float] = {}

    def measure(node: Node) -> None:
        shares[node.name] = node.cpu_share(2.0)

    at_once([lambda node=node: measure(node) for node in world.nodes])
    lines = max(node.lines_per_second(since) for node in world.nodes)
    print(f"idle afterwards: {max(shares.values()):.1%} of a core, {lines} log lines a second")
    assert max(shares.values()) < CPU_SHARE_MAX
    assert lines <= LINES_PER_SECOND_MAX


def test_four_schedulers_on_a_file_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        world.start_nodes(NODES)
        plan = mixed_plan(world.receiver.url, whole_second(2), 6)
        plan.define(world.api)
        strikes = Nemesis(world, SEED).strike_until(lambda: micros() > plan.end)
        judged(world, plan)
        assert strikes >= 3
        must_be_quiet(world)


def test_four_schedulers_outlive_their_database_and_each_other(postgres: Postgres) -> None:
    """Killed and paused at random; then the database is killed and restarted, then it stalls."""
    with World(f"{postgres.url}?connections_max=5") as world:
        world.start_nodes(NODES)
        plan = mixed_plan(world.receiver.url, whole_second(2), 20)
        plan.define(world.api)
        strikes = iter(range(STRIKES))
        Nemesis(world, SEED, (KILL, KILL, PAUSE)).strike_until(lambda: next(strikes, None) is None)
        world.outage("restart", postgres.restart)
        after_restart = _resumed(world)
        world.outage("stall", lambda: _stall(postgres))
        assert micros() < plan.end - SECOND, "the faults outlasted the window, so nothing could be seen to go on"
        after_stall = _resumed(world)
        print(f"new fire times delivered {after_restart:.2f} s after the restart, {after_stall:.2f} s after the stall")
        judged(world, plan)
        assert max(after_restart, after_stall) <= RESUME_SECONDS
        assert max(node.lines_per_second() for node in world.nodes) <= LINES_PER_SECOND_MAX
        must_be_quiet(world)


def _stall(postgres: Postgres) -> None:
    postgres.pause()
    let_pass(STALL_SECONDS)
    postgres.resume()


def _resumed(world: World) -> float:
    """Seconds until a fire time that comes after this instant is delivered."""
    now = micros()

    def fresh() -> list[int]:
        return [arrival.at for arrival in list(world.receiver.arrivals) if arrival.fire_at > now]

    world.receiver.wait_for(lambda: bool(fresh()), 20, "new fire times")
    return (min(fresh()) - now) / SECOND


def test_schedulers_that_come_and_go_in_order_repeat_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        world.start_nodes(NODES)
        plan = mixed_plan(world.receiver.url, whole_second(2), 3)
        plan.define(world.api)
        Nemesis(world, SEED, (TERMINATE,)).strike_until(lambda: micros() > plan.end)
        verdict = judged(world, plan)
        assert verdict.redelivered == 0, "an orderly stop cuts nothing off"
