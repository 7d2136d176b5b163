"""Four servers with all roles on one store, killed and started again at random: nothing is lost, nothing done twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.proof.harness import Node, World, at_once
from tests.proof.jobs import MIXED_JOBS, Plan, mixed_plan, soon
from tests.proof.ledger import Ledger
from tests.proof.nemesis import TERMINATE, Nemesis
from tests.proof.receiver import micros
from tests.proof.verdict import Verdict

pytestmark = pytest.mark.slow

NODES = 4
SEED = 7
LATE_SECONDS_MAX = 15.0
CPU_SHARE_MAX = 0.20
LINES_PER_SECOND_MAX = 10


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

    at_once([partial(measure, node) for node in world.nodes])
    lines = max(node.lines_per_second(since) for node in world.nodes)
    print(f"idle afterwards: {max(shares.values()):.1%} of a core, {lines} log lines a second")
    assert max(shares.values()) < CPU_SHARE_MAX
    assert lines <= LINES_PER_SECOND_MAX


def test_four_schedulers_on_a_file_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        world.start_nodes(NODES)
        plan = mixed_plan(world.receiver.url, soon(world.api, MIXED_JOBS + 72), 6)
        plan.define(world.api)
        strikes = Nemesis(world, SEED).strike_until(lambda: micros() > plan.end)
        judged(world, plan)
        assert strikes >= 3
        must_be_quiet(world)


def test_schedulers_that_come_and_go_in_order_repeat_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        world.start_nodes(NODES)
        plan = mixed_plan(world.receiver.url, soon(world.api, MIXED_JOBS + 36), 3)
        plan.define(world.api)
        Nemesis(world, SEED, (TERMINATE,)).strike_until(lambda: micros() > plan.end)
        verdict = judged(world, plan)
        assert verdict.redelivered == 0, "an orderly stop cuts nothing off"
