"""Several schedulers on one PostgreSQL and one RabbitMQ, workers in processes of their own, faults, and the ledger.

The workers know the wire alone. What is owed is computed here (`tests.proof.jobs`), what was done is read from the
store at the end and from what the workers wrote down.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.proof.harness import World
from tests.proof.jobs import SECOND, Plan, whole_second
from tests.proof.receiver import instant, micros
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ
from tests.waiting import let_pass

JOBS = 10
LEASE_SECONDS = 6.0
FINAL_SECONDS = 240.0
BROKER_PAUSE_SECONDS = 10.0


class Fleet:
    """The nodes, the workers and the faults of one experiment."""

    def __init__(self, world: World, broker: RabbitMQ, folder: Path, seed: int) -> None:
        self.world = world
        self.broker = broker
        self.folder = folder
        self.random = Random(seed)
        self.plan = Plan(0, 0)

    def start(self, nodes: int, workers: int, seconds: float, ahead_seconds: int = 8) -> None:
        """Nodes, then jobs that fire every second, then workers."""
        self.world.node("--bus-url", self.broker.url)
        for _ in range(nodes - 1):
            self.world.node("--bus-url", self.broker.url)
        start = whole_second(ahead_seconds)
        self.plan = Plan(start, start + round(seconds) * SECOND, lease_seconds=LEASE_SECONDS)
        for number in range(JOBS):
            self.plan.interval(f"fleet-{number}", 1, {"type": "bus"}, overlap="allow")
        self.plan.define(self.world.api)
        for number in range(workers):
            self._start_worker(number)

    def _start_worker(self, number: int) -> None:
        command = [sys.executable, "-m", "tests.buses.wire_worker", self.broker.url]
        log = str(self.folder / f"worker-{number}.log")
        self.world.process(f"worker-{number}", [*command, log, *self.plan.owed])

    # ---- faults

    def kill_a_node(self) -> None:
        """kill -9 while it works, and start it again."""
        node = self.random.choice(self.world.nodes)
        node.kill()
        node.start()

    def kill_a_node_that_holds_runs(self) -> None:
        """The broker falls silent, so that runs are claimed and not confirmed; then a node dies. How many it held."""
        self.world.outage("broker paused", lambda: self._pause_and_kill())

    def _pause_and_kill(self) -> None:
        self.broker.pause()
        let_pass(1.5)
        self.kill_a_node()
        self.broker.resume()

    def kill_a_worker(self) -> None:
        """kill -9, and another begins."""
        worker = self.random.choice(self.world.others)
        worker.kill()
        worker.spawn()

    def pause_the_broker(self) -> None:
        """SIGSTOP for a while."""

        def pause() -> None:
            self.broker.pause()
            let_pass(BROKER_PAUSE_SECONDS)
            self.broker.resume()

        self.world.outage("broker paused", pause)

    def restart_the_broker(self) -> None:
        """kill -9, and start again on its data."""
        self.world.outage("broker restarted", self.broker.restart)

    def torment(self) -> None:
        """Faults at random until the window is over."""
        faults: list[Callable[[], None]] = [
            self.kill_a_node,
            self.kill_a_node,
            self.kill_a_node_that_holds_runs,
            self.kill_a_worker,
            self.pause_the_broker,
            self.restart_the_broker,
        ]
        while micros() < self.plan.end:
            self.random.choice(faults)()
            let_pass(self.random.uniform(1.0, 4.0))

    # ---- the end

    def judge(self) -> tuple[list[str], str]:
        """Wait until every run is final. What is wrong, a sentence each; and what happened, in words."""
        self.world.wait_over(self.plan.end, FINAL_SECONDS)
        runs, taken = self.world.api.runs(), self.taken()
        started = {run for run, _ in taken}
        wrong = [f"{run['id']} ({run['job']}) is {run['state']}" for run in runs if run["state"] != "completed"]
        wrong += [f"{run['id']} is completed, and no worker had it" for run in runs if run["id"] not in started]
        fires = Counter((run["job"], instant(run["fire_at"])) for run in runs)
        owed = Counter((job, fire) for job, times in self.plan.owed.items() for fire in times)
        wrong += [
            f"{job}: {fires[job, fire]} runs for the fire time {fire}" for job, fire in (owed - fires) + (fires - owed)
        ]
        faults = Counter(fault.kind for fault in self.world.all_faults())
        return wrong, (
            f"{len(owed)} fire times, {len(runs)} runs, faults: {dict(faults)}; {len(taken)} actions taken,"
            f" {sum(taken.values()) - len(taken)} more under a token that was taken before;"
            f" runs by attempts: {dict(sorted(Counter(run['attempt'] for run in runs).items()))};"
            f" {len(wrong)} things are wrong"
        )

    def taken(self) -> Counter[tuple[str, int]]:
        """How often each action `run` was taken, by run and token."""
        counts: Counter[tuple[str, int]] = Counter()
        for log in self.folder.glob("worker-*.log"):
            for line in log.read_text().splitlines():
                action = json.loads(line)
                if action["action"] == "run":
                    counts[action["runId"], action["token"]] += 1
        return counts


def servers() -> tuple[Postgres, RabbitMQ]:
    """Both, started."""
    postgres, rabbitmq = Postgres(), RabbitMQ()
    postgres.start()
    rabbitmq.start()
    return postgres, rabbitmq
