"""The store fails under a running server: its file is held by somebody else, its disk is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.proof.disk import SmallDisk
from tests.proof.harness import Answer, Node, World, let_pass, wait_until
from tests.proof.jobs import SECOND, Plan, http, queue, whole_second
from tests.proof.ledger import Ledger
from tests.proof.receiver import micros

pytestmark = pytest.mark.slow

LOCKED_SECONDS = 8.0
FULL_SECONDS = 3.0
RESUME_SECONDS = 5.0
LINES_PER_SECOND_MAX = 10
LATER = {"type": "once", "at": "2199-01-01T00:00:00Z"}


def put(node: Node, name: str) -> Answer:
    """Ask for a job that never runs: a write whose acknowledgement is a promise."""
    definition = {"name": name, "trigger": LATER, "target": queue("none", filler="x" * 2_000)}
    return node.api.call("PUT", f"/api/v1/jobs/{name}", definition, timeout=30)


def outlived(
    world: World, kind: str, seconds: float, begin: Callable[[], object], end: Callable[[], object], why: str
) -> None:
    """Jobs every second through an outage: what is said meanwhile, and that nothing is lost."""
    (node,) = world.nodes
    start = whole_second(1)
    plan = Plan(start, start + round(seconds + 7) * SECOND)
    for number in range(10):
        plan.interval(f"tick-{number}", 1, http(f"{world.receiver.url}/ok"))
    plan.define(node.api)
    promised = [name for name in (f"before-{number}" for number in range(5)) if put(node, name).status == 201]
    assert len(promised) == 5
    wait_until(lambda: world.receiver.count() >= 15, 20, "arrivals")

    def fault() -> None:
        at = micros()
        begin()
        refused = put(node, "during-1")
        if refused.status == 201:
            promised.append("during-1")
            refused = put(node, "during-2")
        assert (refused.status, refused.type) == (503, "application/problem+json"), refused
        assert refused.body["code"] == "store_unavailable"
        ready = wait_until(lambda: _unready(node), 12, "/readyz to say so")
        assert any(why in reason for reason in ready.body["problems"].values()), ready
        assert node.api.call("GET", "/healthz").status == 200
        let_pass(max(0.0, seconds - (micros() - at) / SECOND))
        end()

    world.outage(kind, fault)
    back = micros()
    assert back < plan.end - SECOND, "the outage outlasted the window, so nothing could be seen to go on"
    world.receiver.wait_for(lambda: any(a.fire_at > back for a in list(world.receiver.arrivals)), 15, "new fire times")
    resumed = (micros() - back) / SECOND
    wait_until(lambda: node.api.call("GET", "/readyz").status == 200, 10, "/readyz to be well again")
    assert put(node, "after").status == 201
    world.wait_over(plan.end, 30)
    for name in (*promised, "after"):
        assert node.api.call("GET", f"/api/v1/jobs/{name}").status == 200, f"{name} was acknowledged, and is not there"
    verdict = Ledger(plan.owed, node.api.runs(), world.receiver.arrivals, (), world.all_faults()).judge()
    print(
        f"{kind}: new fire times {resumed:.2f} s after its end, {node.lines_per_second()} log lines a second\n{verdict}"
    )
    verdict.must_hold()
    assert resumed <= RESUME_SECONDS
    assert node.lines_per_second() <= LINES_PER_SECOND_MAX


def _unready(node: Node) -> Answer | None:
    answer = node.api.call("GET", "/readyz")
    return answer if answer.status == 503 else None


def test_a_file_that_another_process_holds_stops_nothing_for_good(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        world.node()
        with closing(apsw.Connection(f"{tmp_path}/store.db")) as holder:
            begin, end = (lambda sql=sql: holder.execute(sql).close() for sql in ("BEGIN EXCLUSIVE", "ROLLBACK"))
            outlived(world, "locked", LOCKED_SECONDS, begin, end, "held the file")


def test_a_full_disk_stops_nothing_for_good(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk, World(f"sqlite:///{disk.folder}/store.db") as world:
        node = world.node()
        why = "the disk is full" if disk.real else "writing failed"
        outlived(world, "disk full", FULL_SECONDS, lambda: disk.fill(node), lambda: disk.free(node), why)
        node.kill()
        with closing(apsw.Connection(f"{disk.folder}/store.db")) as store:
            assert store.pragma("integrity_check") == "ok"
