"""One server on a SQLite file, killed in the middle of its work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.proof.harness import Node, World
from tests.proof.jobs import SECOND, Plan, http, soon, text
from tests.proof.ledger import Ledger, Promise
from tests.proof.receiver import Receiver, micros
from tests.waiting import let_pass

KILLS_AFTER = (60, 160, 260)
"""After so many arrivals the server is killed; the second time it stays down for longer than a misfire's grace."""

DOWN_SECONDS = 3.0


@pytest.mark.slow
def test_kill_9_in_the_middle_of_hundreds_of_due_runs_loses_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        start = soon(node.api, 92)
        plan = Plan(start, start + 8 * SECOND)
        ok, hold, callback = (http(f"{world.receiver.url}/{path}") for path in ("ok", "hold/0.3", "callback/0.2"))
        for number in range(16):
            plan.interval(f"tick-{number}", 1, ok)
        for number in range(6):
            plan.interval(f"hold-{number}", 1, hold)
        for number in range(4):
            plan.interval(f"callback-{number}", 2, callback)
        for number in range(4):
            plan.interval(f"latest-{number}", 1, ok, catch_up={"policy": "latest"})
        plan.cron("cron", "*/2 * * * * *", ok)
        plan.rrule("rrule", "FREQ=SECONDLY;INTERVAL=3", ok)
        for number in range(60):
            plan.once(f"once-{number}", start + number * SECOND // 8, ok)
        plan.define(node.api)
        history = range(start - 200 * SECOND, start, 2 * SECOND)
        filled = {"type": "interval", "every_seconds": 2, "anchor": text(start - 200 * SECOND)}
        plan.add("filled", filled, ok, history, ends_at=text(start + SECOND), fires_max=1_000)
        plan.owed["filled"].append(start)
        node.api.must("PUT", "/jobs/filled", plan.definitions[-1])
        acknowledged = _ask_and_kill(world, node, start)
        world.wait_over(plan.end, 60)
        runs = node.api.runs()
        manual = [run for run in runs if run["cause"] == "manual"]
        verdict = Ledger(
            plan.owed, runs, world.receiver.arrivals, world.receiver.reports, world.all_faults(), acknowledged
        ).judge()
        print(verdict)
        verdict.must_hold()
        assert len(manual) == len({run["id"] for run in manual}) == 12
        assert verdict.states["failed"] == 0
        assert max(verdict.late_seconds) < 12


def _ask_and_kill(world: World, node: Node, start: int) -> dict[str, Promise]:
    """Runs by hand and a backfill, and a kill after each so many arrivals. The runs that were promised."""
    acknowledged: dict[str, Promise] = {}
    for kill, arrivals in enumerate(KILLS_AFTER):
        for number in range(4):
            key = f"key-{kill}-{number}"
            run = node.api.must("POST", "/jobs/tick-1/trigger", {}, Idempotency_Key=key)
            acknowledged[run["id"]] = Promise(micros())
        if kill == 1:
            span = {"start": text(start - 200 * SECOND), "end": text(start)}
            filled = node.api.must("POST", "/jobs/filled/backfill", span)
            acknowledged |= {run["id"]: Promise(micros()) for run in filled["runs"]}
        world.receiver.wait_for(partial(_has_counted, world.receiver, arrivals), 30)
        node.kill()
        if kill == 1:
            let_pass(DOWN_SECONDS)
        node.start()
    return acknowledged


def _has_counted(receiver: Receiver, count: int) -> bool:
    return receiver.count() >= count
