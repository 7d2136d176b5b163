"""Cancels and pauses at the very moment at which runs fall due: what is acknowledged holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.proof.harness import Api, World, at_once
from tests.proof.jobs import SECOND, Plan, http, pace_seconds, soon
from tests.proof.ledger import Ledger
from tests.proof.receiver import Arrival, micros
from tests.waiting import eventually, let_pass

pytestmark = pytest.mark.slow

RUNS = 300
APART = 10_000
"""Microseconds between two due instants, or more where the server is slower than that."""
AROUND = 50_000
CANCELLERS = 4
HAND_OVER = 500_000
"""How long after a claimed run was asked to stop its request may still arrive: it was on its way."""


def test_a_cancel_around_the_due_instant_never_contradicts_itself(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db", 3) as world:
        node = world.node("--plan-ahead-seconds", "60")
        apart = max(APART, round(2 * pace_seconds(node.api) * SECOND))
        plan = Plan(soon(node.api, RUNS), 0, lease_seconds=5)
        for number in range(RUNS):
            path = "ok" if number % 2 else "hold/0.05"
            plan.once(f"run-{number}", plan.start + number * apart, http(f"{world.receiver.url}/{path}"))
        shares = [plan.definitions[share::CANCELLERS] for share in range(CANCELLERS)]
        at_once([partial(_define, node.api, share) for share in shares])
        ids = eventually(lambda: _ids(node.api), what="all runs to be planned")
        assert micros() < plan.start - SECOND // 10, "the runs were not planned in time"
        order = sorted(
            (plan.start + number * apart + world.random.randint(-AROUND, AROUND), ids[f"run-{number}"])
            for number in range(RUNS)
        )
        answers: dict[str, tuple[int, Any, int]] = {}
        at_once([partial(_cancel, node.api, order[share::CANCELLERS], answers) for share in range(CANCELLERS)])
        world.wait_over(plan.start + RUNS * apart, 40)
        runs = {run["id"]: run for run in node.api.runs()}
        arrivals: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in world.receiver.arrivals:
            arrivals[arrival.run].append(arrival)
        said = Counter("too late" if status == 409 else body["state"] for status, body, _ in answers.values())
        wrong = [
            f"{run_id}: {answers[run_id][0]} {problem}"
            for run_id, run in runs.items()
            for problem in _contradictions(run, answers[run_id], arrivals[run_id])
        ]
        print(f"{RUNS} cancels at -50..+50 ms: {dict(said)}; ended {Counter(r['state'] for r in runs.values())}")
        assert not wrong, wrong[:10]
        assert said["cancelled"] > 50
        assert said["too late"] + said["cancelling"] > 50


def _define(api: Api, definitions: list[dict[str, Any]]) -> None:
    for definition in definitions:
        api.must("PUT", f"/jobs/{definition['name']}", definition)


def _ids(api: Api) -> dict[str, str] | None:
    ids = {run["job"]: run["id"] for run in api.runs()}
    return ids if len(ids) == RUNS else None


def _cancel(api: Api, order: list[tuple[int, str]], answers: dict[str, tuple[int, Any, int]]) -> None:
    for at, run_id in order:
        let_pass(max(0, at - micros()) / SECOND)
        answer = api.call("POST", f"/api/v1/runs/{run_id}/cancel")
        answers[run_id] = answer.status, answer.body, micros()


def _contradictions(run: dict[str, Any], answer: tuple[int, Any, int], arrivals: list[Arrival]) -> list[str]:
    status, body, at = answer
    found = []
    if len(arrivals) > 1:
        found.append(f"was delivered {len(arrivals)} times")
    if status == 200 and body["state"] == "cancelled":
        if run["state"] != "cancelled":
            found.append(f"was cancelled, and is {run['state']}")
        if arrivals:
            found.append(f"was cancelled before it was claimed, and was delivered {arrivals[0].at - at} us later")
    elif status == 200:
        if run["state"] not in ("cancelled", "completed"):
            found.append(f"was asked to stop, and is {run['state']}")
        if any(arrival.at > at + HAND_OVER for arrival in arrivals):
            found.append(f"was asked to stop, and was delivered {arrivals[-1].at - at} us afterwards")
    elif (status, run["state"]) != (409, "completed"):
        found.append(f"was answered {status}, and is {run['state']}")
    return found


def test_no_fire_time_after_an_acknowledged_pause_is_delivered(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db", 5) as world:
        node = world.node("--plan-ahead-seconds", "2", "--execution-window-seconds", "0.5")
        start = soon(node.api, 30)
        plan = Plan(start, start + 5 * SECOND)
        for number in range(30):
            plan.interval(f"job-{number}", 1, http(f"{world.receiver.url}/ok"))
        plan.define(node.api)
        order = sorted(
            (start + world.random.randint(1, 3) * SECOND + world.random.randint(-AROUND, AROUND), f"job-{number}")
            for number in range(30)
        )
        paused: dict[str, int] = {}
        at_once([partial(_pause, node.api, order[share::2], paused) for share in range(2)])
        eventually(lambda: micros() > plan.end - SECOND // 2, what="the last second")
        late = [a for a in world.receiver.arrivals if a.fire_at > paused[a.job]]
        assert not late, f"{len(late)} fire times were delivered after their job was paused, such as {late[0]}"
        for number in range(30):
            node.api.must("POST", f"/jobs/job-{number}/resume", {})
        world.wait_over(plan.end, 20)
        verdict = Ledger(plan.owed, node.api.runs(), world.receiver.arrivals, (), world.all_faults()).judge()
        print(verdict)
        verdict.must_hold()


def _pause(api: Api, order: list[tuple[int, str]], paused: dict[str, int]) -> None:
    for at, job in order:
        let_pass(max(0, at - micros()) / SECOND)
        api.must("POST", f"/jobs/{job}/pause", {})
        paused[job] = micros()
