"""Four servers with all roles on one store, killed and started again at random: no leader, nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.harness import Node, World, let_pass, wait_until
from tests.proof.jobs import SECOND, Plan, http, queue, text, whole_second
from tests.proof.ledger import Ledger, Verdict
from tests.proof.nemesis import Nemesis, at_once
from tests.proof.receiver import micros
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow

NODES = 4
SEED = 7
WINDOW_SECONDS = 12
STALL_SECONDS = 5.0
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


def plan_of(world: World, start: int, seconds: int = WINDOW_SECONDS) -> Plan:
    """Forty jobs every one to four seconds, and a hundred runs at their own instants."""
    plan = Plan(start, start + seconds * SECOND)
    url = world.receiver.url
    for number in range(24):
        plan.interval(f"tick-{number}", 1 + number % 4, http(f"{url}/ok"))
    for number in range(6):
        plan.interval(f"hold-{number}", 2, http(f"{url}/hold/0.3"))
    for number in range(6):
        plan.interval(f"callback-{number}", 2, http(f"{url}/callback/0.1"))
    for number in range(4):
        plan.interval(f"serial-{number}", 1, http(f"{url}/hold/0.1"), overlap="buffer_all")
    for number in range(100):
        plan.once(f"once-{number}", start + number * seconds * SECOND // 100, http(f"{url}/ok"))
    return plan


def start_nodes(world: World, count: int = NODES) -> None:
    """The first alone (it makes the schema), the others at once."""
    world.node()
    nodes = [Node(f"node-{number}", world.store) for number in range(2, count + 1)]
    world.nodes += nodes
    at_once([node.start for node in nodes])


def judged(world: World, plan: Plan, seconds: float = 40) -> Verdict:
    world.api.wait_final(seconds)
    verdict = Ledger(
        plan.owed, world.api.runs(), world.receiver.arrivals, world.receiver.reports, world.all_faults()
    ).judge()
    print(verdict)
    return verdict


def must_be_quiet(world: World) -> None:
    """I5: nobody is left in a hot loop."""
    since = micros()
    shares: dict[str, float] = {}

    def measure(node: Node) -> None:
        shares[node.name] = node.cpu_share(2.0)

    at_once([lambda node=node: measure(node) for node in world.nodes])
    lines = max(node.busiest_second(since) for node in world.nodes)
    print(f"idle afterwards: {max(shares.values()):.1%} of a core, {lines} log lines a second")
    assert max(shares.values()) < CPU_SHARE_MAX
    assert lines <= LINES_PER_SECOND_MAX


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_four_schedulers_killed_at_random_lose_nothing_and_repeat_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("postgres").url
    with World(store, SEED) as world:
        start_nodes(world)
        plan = plan_of(world, whole_second(3))
        plan.define(world.api)
        strikes = Nemesis(world, SEED).strike_until(lambda: micros() > plan.end)
        verdict = judged(world, plan)
        verdict.must_hold()
        assert strikes >= 4
        assert verdict.states["completed"] == verdict.runs
        assert max(verdict.late_seconds) <= 15
        must_be_quiet(world)


def test_four_schedulers_outlive_a_database_that_restarts_and_stalls(postgres: Postgres) -> None:
    with World(f"{postgres.url}?connections_max=5") as world:
        start_nodes(world)
        prefix = f"outage-{micros()}"
        plan = Plan(whole_second(3), 0)
        plan.end = plan.start + 20 * SECOND
        for number in range(20):
            plan.interval(f"{prefix}-{number}", 1, http(f"{world.receiver.url}/ok"))
        plan.define(world.api)
        wait_until(lambda: world.receiver.count(prefix) > 40, 20, "arrivals")
        world.outage("restart", postgres.restart)
        back = micros()
        world.receiver.wait_for(lambda: _fresh(world, back), 15, "arrivals after the restart")
        after_restart = (_first_since(world, back) - back) / SECOND
        world.outage("stall", lambda: _stall(postgres))
        resumed = micros()
        world.receiver.wait_for(lambda: _fresh(world, resumed), 15, "arrivals after the stall")
        after_stall = (_first_since(world, resumed) - resumed) / SECOND
        print(f"new fire times delivered {after_restart:.2f} s after the restart, {after_stall:.2f} s after the stall")
        wait_until(lambda: micros() > plan.end, 30, "the end of the window")
        world.api.wait_final(40)
        runs = [run for run in world.api.runs() if run["job"].startswith(prefix)]
        verdict = Ledger(plan.owed, runs, world.receiver.arrivals, (), world.all_faults()).judge()
        print(verdict)
        verdict.must_hold()
        assert max(after_restart, after_stall) <= 5
        assert max(node.busiest_second() for node in world.nodes) <= LINES_PER_SECOND_MAX
        must_be_quiet(world)


def _stall(postgres: Postgres) -> None:
    postgres.pause()
    let_pass(STALL_SECONDS)
    postgres.resume()


def _fresh(world: World, since: int) -> bool:
    """Whether a fire time after this instant was delivered."""
    return any(arrival.fire_at > since for arrival in list(world.receiver.arrivals))


def _first_since(world: World, since: int) -> int:
    return min(arrival.at for arrival in list(world.receiver.arrivals) if arrival.fire_at > since)


def test_schedulers_that_come_and_go_in_order_repeat_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db", SEED) as world:
        start_nodes(world)
        plan = plan_of(world, whole_second(3), 8)
        plan.define(world.api)
        while micros() < plan.end:
            node = world.random.choice(world.nodes)
            assert node.terminate() == 0
            node.start()
        verdict = judged(world, plan)
        verdict.must_hold()
        assert verdict.states["completed"] == verdict.runs
        assert verdict.redelivered == 0, "an orderly stop cuts nothing off"
