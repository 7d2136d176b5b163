"""Workers that wait for work over HTTP, on real sockets and servers in processes of their own."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest

from tests.blackbox.outside import Server, instant, serving
from tests.remote.conftest import Nodes
from tests.remote.wire import Wire, claim, play
from tests.waiting import PATIENCE, eventually

WAITING = 200


def backfill(server: Server, name: str, count: int, **fields: Any) -> set[str]:
    """So many runs in the queue of that name, all due; their ids. The job's own schedule adds none for half an hour."""
    first = datetime.now(UTC) - timedelta(hours=count) - timedelta(minutes=30)
    rule = {"type": "interval", "every_seconds": 3600, "anchor": first.isoformat()}
    server.add(name, rule, starts_at=first.isoformat(), catch_up={"policy": "none"}, **fields)
    period = {"start": first.isoformat(), "end": (first + timedelta(hours=count)).isoformat()}
    ids = {run["id"] for run in server("POST", f"/jobs/{name}/backfill", period)["runs"]}
    assert len(ids) == count
    return ids


def fire_once(server: Server, name: str, queue: str, at: float) -> None:
    """A job that fires at this instant, into that queue."""
    when = datetime.fromtimestamp(at, UTC).isoformat()
    server.add(name, {"type": "once", "at": when}, {"type": "queue", "queue": queue})


def until_waiting(server: Server, count: int) -> None:
    eventually(lambda: server("GET", "/stats")["workers_waiting"] == count)


def test_a_stop_sends_every_waiter_home_at_once(store: str, name: str) -> None:
    with serving(store) as server:

        async def scenario() -> tuple[Counter[int], float]:
            wires = await asyncio.gather(*(Wire.open(server.url) for _ in range(WAITING)))
            for number, wire in enumerate(wires):
                wire.send("/runs/claim", claim(name, f"w{number}", wait=60))
            await asyncio.to_thread(until_waiting, server, WAITING)
            stopped_at = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answers = await asyncio.wait_for(asyncio.gather(*(wire.answer() for wire in wires)), PATIENCE)
            home = time.monotonic() - stopped_at
            return Counter(status for status, _ in answers), home

        statuses, home = play(scenario())
        assert server.ended() == 0
        assert statuses == {503: WAITING}
        assert home < 55, "they would have waited for 60"


@pytest.mark.proof
@pytest.mark.parametrize("planned", ["ahead", "now"])
def test_what_another_process_planned_comes_at_once(nodes: Nodes, name: str, planned: str) -> None:
    """One process plans, another answers the claims; neither knows of the other."""
    plans, answers = nodes.whole, nodes.api
    late: list[float] = []

    async def scenario() -> None:
        wire = await Wire.open(answers.url)
        for number in range(8):
            if planned == "ahead":
                await asyncio.to_thread(fire_once, plans, f"{name}.{number}", name, time.time() + 0.7)
                (run,) = await wire.claim(name)
            else:
                if number == 0:
                    await asyncio.to_thread(plans.add, name, 3600)
                wire.send("/runs/claim", claim(name))
                await asyncio.to_thread(until_waiting, answers, 1)
                await asyncio.to_thread(plans, "POST", f"/jobs/{name}/trigger")
                run = (await wire.answer())[1]["runs"][0]
            late.append(wire.received_at - instant(run["due_at"]).timestamp())
        wire.hang_up()

    play(scenario())
    assert min(late) >= 0, late
    # SQLite can't tell another process: it is asked ten times a second.
    assert statistics.median(late) < 0.2, late


def test_waiters_get_equal_shares(store: str, name: str) -> None:
    workers, rounds = 20, 5
    with serving(store) as server:
        shares: Counter[int] = Counter()

        async def work(number: int) -> None:
            wire = await Wire.open(server.url)
            while shares.total() < workers * rounds:
                shares[number] += len(await wire.claim(name, f"w{number}", wait=2))
            wire.hang_up()

        async def scenario() -> None:
            working = [asyncio.create_task(work(number)) for number in range(workers)]
            await asyncio.to_thread(until_waiting, server, workers)
            await asyncio.to_thread(backfill, server, name, workers * rounds)
            await asyncio.gather(*working)

        play(scenario())
        assert sum(shares.values()) == workers * rounds
        assert len(shares) == workers
        assert max(shares.values()) - min(shares.values()) <= rounds, shares


class Crowd:
    """Workers that come and go while runs fall due; those that stay do all of the work."""

    def __init__(self, server: Server, queue: str, chance: random.Random) -> None:
        self.server, self.queue, self.chance = server, queue, chance
        self.completed: Counter[str] = Counter()
        self.hung_up: Counter[str] = Counter()
        self.attempts: dict[str, int] = {}
        self.leaving = True

    async def faithful(self) -> None:
        """Takes runs and completes them."""
        wire = await Wire.open(self.server.url)
        while True:
            for run in await wire.claim(self.queue, "faithful", wait=10):
                status, _ = await wire.ask(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
                assert status == 200
                self.completed[run["id"]] += 1
                self.attempts[run["id"]] = run["attempt"]

    async def faithless(self) -> None:
        """Hangs up: while it waits, at any moment, or with the first byte of the answer."""
        while self.leaving:
            wire = await Wire.open(self.server.url)
            wire.send("/runs/claim", claim(self.queue, "faithless"))
            received = await wire.first_byte(self.chance.choice([self.chance.uniform(0, 0.3), 1.0]))
            if received:
                wire.hang_up(reset=self.chance.random() < 0.5)
            else:
                received = await wire.say_goodbye()
            self.hung_up["received" if received else "waiting"] += 1


@pytest.mark.proof
def test_workers_that_hang_up_lose_nothing(nodes: Nodes, name: str) -> None:
    runs = 80
    server = nodes.whole
    crowd = Crowd(server, name, random.Random(name))
    server.add(name, 3600, timeouts={"heartbeat_seconds": 6}, retry={"attempts_max": 20})

    async def scenario() -> None:
        workers = [asyncio.create_task(crowd.faithful()) for _ in range(5)]
        leavers = [asyncio.create_task(crowd.faithless()) for _ in range(20)]
        for _ in range(runs):
            await asyncio.sleep(crowd.chance.uniform(0, 0.06))
            await asyncio.to_thread(server, "POST", f"/jobs/{name}/trigger")
        crowd.leaving = False
        await asyncio.wait(leavers, timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while len(crowd.completed) < runs:
                done, _ = await asyncio.wait(workers, timeout=0.1)
                assert not done, [task.exception() for task in done]
        for task in (*workers, *leavers):
            task.cancel()
        await asyncio.gather(*workers, *leavers, return_exceptions=True)

    play(scenario())
    assert set(crowd.completed.values()) == {1}
    assert crowd.hung_up["waiting"] > 0, crowd.hung_up
    assert crowd.hung_up["received"] > 0, crowd.hung_up
    lost = sum(attempt - 1 for attempt in crowd.attempts.values())
    assert lost <= crowd.hung_up["received"], "one that hung up while it waited takes no attempt with it"
    until_waiting(server, 0)
    assert f"pull/{name}" not in {queue["queue"] for queue in server("GET", "/stats")["queues"]}


@pytest.mark.proof
def test_workers_that_vanish_with_all_they_claimed_leave_nothing_behind(store: str, name: str) -> None:
    count, rounds = 1000, 3
    with serving(store) as server:
        process = psutil.Process(server.process.pid)
        ids = backfill(
            server, name, count, timeouts={"heartbeat_seconds": 1}, retry={"attempts_max": rounds + 1}
        )  # fmt: skip
        memory: list[int] = []
        attempts: dict[str, list[int]] = defaultdict(list)

        async def take(least: int) -> None:
            """Until that many were claimed. Those that are lost together come back one by one, over a lease."""
            wire = await Wire.open(server.url)
            async with asyncio.timeout(PATIENCE):
                while sum(map(len, attempts.values())) < least:
                    for run in await wire.claim(name, limit=count, wait=5):
                        attempts[run["id"]].append(run["attempt"])
            wire.hang_up(reset=True)

        for number in range(rounds + 1):
            play(take(count * (number + 1)))
            memory.append(process.memory_info().rss)
        assert attempts == {key: list(range(1, rounds + 2)) for key in ids}
        assert memory[-1] - memory[1] < 16 * 2**20, memory
        assert process.num_fds() < 60
        eventually(lambda: server("GET", "/stats")["queues"] == [])
        assert {run["state"] for run in server("GET", "/runs?limit=200")["items"]} == {"failed"}
