"""An orderly stop is never worse than a kill: the same runs end the same way."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.proof.harness import Answer, Api, World, at_once
from tests.proof.jobs import SECOND, Plan, http, queue, soon
from tests.proof.ledger import Ledger
from tests.proof.receiver import instant, micros
from tests.waiting import eventually

pytestmark = pytest.mark.slow

GRACE_SECONDS = 10


def test_a_stop_in_the_middle_ends_in_the_same_final_set_as_a_kill(tmp_path: Path) -> None:
    ended: dict[str, dict[str, str]] = {}

    def both(how: str) -> None:
        ended[how] = _end_in_the_middle(tmp_path / f"{how}.db", how)

    at_once([lambda: both("SIGTERM"), lambda: both("SIGKILL")])
    assert len(ended["SIGTERM"]) == 60
    assert ended["SIGTERM"] == ended["SIGKILL"]


def _end_in_the_middle(file: Path, how: str) -> dict[str, str]:
    """End a server with 20 runs under way, 20 claimed ahead and 20 to come, and let a second one finish. The states in
    which the jobs' runs end."""
    with World(f"sqlite:///{file}") as world:
        first = world.node("--execution-window-seconds", "2", "--plan-ahead-seconds", "4")
        start = soon(first.api, 60)
        plan = Plan(start, 0)
        for number in range(20):
            plan.once(f"under-way-{number}", start, http(f"{world.receiver.url}/hold/1.5"))
            plan.once(f"claimed-{number}", start + 1_500_000, http(f"{world.receiver.url}/ok"))
            plan.once(f"waiting-{number}", start + 3 * SECOND, http(f"{world.receiver.url}/ok"))
        plan.define(first.api)
        poll = _Poll(first.url)
        eventually(lambda: world.receiver.count("under-way") == 20, what="the runs under way")
        eventually(lambda: _claimed(world) == 40, what="the runs claimed ahead")
        began = micros()
        if how == "SIGTERM":
            _stop_in_order(world, poll)
        else:
            first.kill()
        seconds = (micros() - began) / SECOND
        second = world.node()
        world.wait_over(start + 3 * SECOND, 30)
        runs = second.api.runs()
        verdict = Ledger(plan.owed, runs, world.receiver.arrivals, (), world.all_faults()).judge()
        print(f"{how}: ended within {seconds:.2f} s\n{verdict}")
        verdict.must_hold()
        assert seconds < GRACE_SECONDS
        if how == "SIGTERM":
            assert verdict.redelivered == 0
            assert {run["attempt"] for run in runs} == {1}
            ends = [instant(run["finished_at"]) for run in runs if run["job"].startswith("under-way")]
            assert max(ends) < began + 3 * SECOND, "what ran was settled before the end"
        return {run["job"]: run["state"] for run in runs}


def _stop_in_order(world: World, poll: _Poll) -> None:
    """SIGTERM: what ran is finished, nothing else is begun."""
    assert world.nodes[0].terminate() == 0
    assert poll.status() == 503, "a worker that waited for work was told to ask another server"
    states = Counter((arrival.job.rsplit("-", 1)[0], arrival.status) for arrival in world.receiver.arrivals)
    assert states == Counter({("under-way", 200): 20})


def _claimed(world: World) -> int:
    return len(world.api.must("GET", "/runs?state=running&limit=100")["items"])


class _Poll:
    """A worker that waits for work which never comes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._answers: list[Answer] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        asked = {"queues": ["never"], "limit": 1, "wait_seconds": 60, "worker": "poller"}
        with suppress(OSError):
            self._answers.append(Api(self._url).call("POST", "/api/v1/runs/claim", asked, timeout=60))

    def status(self) -> int | None:
        self._thread.join(10)
        return self._answers[0].status if self._answers else None


def test_an_attempt_that_outlives_the_grace_is_given_back(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        first = world.node("--grace-seconds", "1")
        plan = Plan(soon(first.api, 2), 0)
        plan.once("slow", plan.start, http(f"{world.receiver.url}/gate"))
        plan.once("never", plan.start + 3600 * SECOND, queue("never"))
        plan.define(first.api)
        eventually(lambda: world.receiver.count("slow") == 1, what="its delivery")
        began = micros()
        assert first.terminate() == 0
        assert (micros() - began) / SECOND < 5
        second = world.node()
        eventually(lambda: world.receiver.count("slow") == 2, what="its delivery by the second node")
        world.receiver.open_gate()
        (run,) = eventually(lambda: second.api.runs("&job=slow&state=completed"), what="its end")
        assert run["attempt"] == 1, "given back costs no attempt"
