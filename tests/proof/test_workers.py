"""Workers in processes of their own, by HTTP long poll: killed, paused beyond the lease, poisoned, hung up."""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.proof.harness import Node, Process, World
from tests.proof.jobs import SECOND, Plan, queue, soon
from tests.proof.ledger import Ledger
from tests.proof.receiver import instant, micros
from tests.proof.verdict import Verdict
from tests.proof.worker import read_log, read_work
from tests.waiting import PATIENCE, eventually, let_pass

pytestmark = pytest.mark.slow

LEASE_SECONDS = 2.0
TAKEN_BACK_SECONDS = 2 * LEASE_SECONDS
"""A node leaves each ended lease for its length to the holder, in the first 20 s after its start."""


def plan_of(once: int, start: int, **payload: Any) -> Plan:
    """Jobs every second for six seconds, and so many runs at once."""
    plan = Plan(start, start + 6 * SECOND, lease_seconds=LEASE_SECONDS)
    for number in range(8):
        plan.interval(f"tick-{number}", 1, queue("work", **payload))
    for number in range(once):
        plan.once(f"once-{number}", start + number * SECOND // 20, queue("work", **payload))
    return plan


def judged(world: World, plan: Plan, log: Path) -> Verdict:
    """The ledger of workers: a start in the log is a delivery."""
    runs = world.api.runs()
    starts, reports = read_work(log, {run["id"]: run["job"] for run in runs})
    verdict = Ledger(plan.owed, runs, starts, reports, world.all_faults()).judge()
    print(verdict)
    return verdict


def starts_in(log: Path) -> int:
    return sum(line["event"] == "start" for line in read_log(log))


def test_workers_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        log = tmp_path / "work.log"
        flags: tuple[list[str], ...] = ([], ["--client"], ["--client"])
        workers = [world.worker(f"w{number}", *more, log=log) for number, more in enumerate(flags)]
        plan = plan_of(100, soon(node.api, 108), seconds=0.1)
        plan.define(node.api)
        for kill in range(1, 6):
            eventually(partial(_has_begun, log, 25 * kill), what="starts")
            victim = workers[kill % len(workers)]
            victim.kill()
            victim.spawn()
        eventually(lambda: starts_in(log) >= 148, what="starts")
        node.api.wait_final(30)
        verdict = judged(world, plan, log)
        verdict.must_hold()
        assert verdict.states == Counter(completed=148)
        again = sum(count for why, count in verdict.again.items() if not why.startswith("starved"))
        assert again <= 5 * 4, "only what a killed worker had in hand is begun again"
        assert verdict.faults["starved"] or max(verdict.recovery_seconds) <= TAKEN_BACK_SECONDS + 2


def test_a_worker_that_slept_beyond_its_lease_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        log = tmp_path / "work.log"
        zombie = world.worker("zombie", "--slots", "8", log=log)
        plan = Plan(soon(node.api, 8), 0, lease_seconds=LEASE_SECONDS)
        for number in range(8):
            plan.once(f"once-{number}", plan.start, queue("work", seconds=0.8))
        plan.define(node.api)
        eventually(lambda: starts_in(log) == 8, what="the zombie's starts")
        zombie.pause()
        healthy = world.worker("healthy", "--slots", "8", log=log)
        eventually(lambda: starts_in(log) == 16, what="the second starts")
        node.api.wait_final(20)
        before = {run["id"]: run for run in node.api.runs()}
        zombie.resume()
        stale = eventually(lambda: _reports(log, "zombie", 8), what="the zombie's reports")
        assert [line["status"] for line in stale] == [409] * 8
        assert {run["id"]: run for run in node.api.runs()} == before
        assert all(run["worker"] == "healthy" and run["attempt"] == 2 for run in before.values())
        assert healthy.alive
        verdict = judged(world, plan, log)
        verdict.must_hold()
        assert verdict.states == Counter(completed=8)


def _reports(log: Path, worker: str, count: int) -> list[dict[str, Any]]:
    """The worker's reports, once there are so many."""
    lines = [line for line in read_log(log) if line["event"] == "report" and line["worker"] == worker]
    return lines if len(lines) >= count else []


def test_a_stale_token_is_refused_in_every_report(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        plan = Plan(soon(node.api, 1), 0, lease_seconds=1.0)
        plan.once("once", plan.start, queue("work"))
        plan.define(node.api)
        asked = {"queues": ["work"], "limit": 1, "wait_seconds": 10, "worker": "first"}
        (first,) = node.api.must("POST", "/runs/claim", asked)["runs"]
        (second,) = node.api.must("POST", "/runs/claim", {**asked, "worker": "second"})["runs"]
        assert (first["id"], second["lease"]["token"]) == (second["id"], first["lease"]["token"] + 1)
        assert micros() - instant(first["lease"]["expires_at"]) < 2 * SECOND
        before = node.api.must("GET", f"/runs/{first['id']}")
        token = first["lease"]["token"]
        path = f"/api/v1/runs/{first['id']}"
        for action, more in (("heartbeat", {}), ("complete", {"result": 1}), ("fail", {"error": "x"})):
            refused = node.api.call("POST", f"{path}/{action}", {"token": token, **more})
            assert (refused.status, refused.body["code"]) == (409, "lease_lost")
        batch = node.api.call("POST", "/api/v1/runs/settle", [{"id": first["id"], "token": token, "outcome": "failed"}])
        assert batch.body[0]["problem"]["code"] == "lease_lost"
        assert node.api.must("GET", f"/runs/{first['id']}") == before
        node.api.must("POST", f"/runs/{first['id']}/complete", {"token": second["lease"]["token"]})


def test_a_run_that_kills_its_workers_fails_and_takes_no_healthy_run_with_it(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        log = tmp_path / "work.log"
        plan = Plan(soon(node.api, 62), 0, lease_seconds=1.0, attempts_max=20)
        for number in range(60):
            plan.once(f"good-{number}", plan.start + number * SECOND // 20, queue("work", seconds=0.05))
        for number in range(2):
            poison = queue("work", poison=True)
            plan.once(
                f"poison-{number}", plan.start + SECOND, poison, retry={"attempts_max": 3, "backoff_seconds": 0.2}
            )
        plan.define(node.api)
        workers = [world.worker(f"w{number}", "--slots", "2", log=log) for number in range(2)]
        eventually(lambda: _all_over(node, workers) and len(node.api.runs()) == 62, 3 * PATIENCE, what="the end")
        runs = {run["job"]: run for run in node.api.runs()}
        starts = Counter(line["run"] for line in read_log(log) if line["event"] == "start")
        for number in range(2):
            run = runs[f"poison-{number}"]
            # A worker that one of them kills may have claimed the other, whose attempt is spent without a start.
            assert (run["state"], run["attempt"]) == ("failed", 3)
            assert 1 <= starts[run["id"]] <= 3
            assert "lost: no heartbeat" in run["error"]
        states = Counter(run["state"] for run in runs.values())
        assert states == Counter(completed=60, failed=2)


def _has_begun(log: Path, count: int) -> bool:
    return starts_in(log) >= count


def _all_over(node: Node, workers: list[Process]) -> bool:
    """Whether every run has ended. Workers that were killed by their run are started again."""
    for worker in workers:
        if not worker.alive:
            worker.kill()
            worker.spawn()
    return not node.api.unfinished()


def test_a_claim_whose_worker_resets_the_connection_comes_back_within_its_lease(tmp_path: Path) -> None:
    with World(f"sqlite:///{tmp_path}/store.db") as world:
        node = world.node()
        plan = Plan(soon(node.api, 60), 0, lease_seconds=LEASE_SECONDS)
        for number in range(40):
            plan.once(f"once-{number}", plan.start + number * 10_000, queue("work", seconds=0))
        plan.define(node.api)
        before = _sockets(node)
        pollers = [_poll(node, f"poller-{number}") for number in range(40)]
        eventually(
            lambda: node.api.must("GET", "/stats")["workers_waiting"] == 40, what="the pollers", ignoring=OSError
        )
        for number, poller in enumerate(pollers):
            delay = (plan.start + number * 10_000 - micros()) / SECOND + world.random.uniform(-0.03, 0.03)
            let_pass(max(delay, 0))
            poller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            poller.close()
        log = tmp_path / "work.log"
        world.worker("healthy", "--slots", "8", log=log)
        node.api.wait_final(20)
        runs = node.api.runs()
        assert Counter(run["state"] for run in runs) == Counter(completed=40)
        taken = max(instant(run["finished_at"]) - instant(run["fire_at"]) for run in runs) / SECOND
        print(f"40 resets at the hand-out: all runs completed within {taken:.2f} s of their time")
        assert taken < TAKEN_BACK_SECONDS + 3
        eventually(
            lambda: _sockets(node) <= before + 12, what="the sockets of those who left to be closed", ignoring=OSError
        )


def _poll(node: Node, name: str) -> socket.socket:
    """A long poll under way, whose answer nobody reads."""
    place = urlsplit(node.url)
    assert place.hostname is not None
    connection = socket.create_connection((place.hostname, place.port or 80))
    body = json.dumps({"queues": ["work"], "limit": 1, "wait_seconds": 30, "worker": name}).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /api/v1/runs/claim HTTP/1.1\r\n{fields}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


def _sockets(node: Node) -> int:
    links = [Path(link) for link in Path(f"/proc/{node.pid}/fd").iterdir()]
    return sum("socket:" in str(link.readlink()) for link in links if link.is_symlink())
