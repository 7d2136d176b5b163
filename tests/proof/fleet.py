"""Four processes on one store, and everything that may happen to them: two servers that plan and dispatch, two workers.

A strike kills, pauses or stops one of the four; after some of them comes a fault of the store. Meanwhile thousands of
runs are in flight: jobs fire every second, and backlogs of a thousand runs are asked for again and again. At the end
the ledger judges all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.proof.backends import ALWAYS, Backend
from tests.proof.harness import Process, World
from tests.proof.jobs import SECOND, Backlog, Plan, fleet_plan, http, queue, soon
from tests.proof.ledger import Ledger
from tests.proof.observer import Observer
from tests.proof.receiver import micros
from tests.proof.verdict import Verdict
from tests.proof.worker import read_log, read_work
from tests.waiting import eventually, let_pass

PAUSE_SECONDS = 4.5
"""Longer than the leases: who wakes up from it has lost all it had."""
DEAD_SECONDS = 10.0
"""Within this every call that waits on a connection which is dead for good must have given up."""
FILL_RUNS = 1_000
DEFINITIONS = 120
SLOTS = 8


@dataclass
class Fleet:
    """The four, their jobs, and what is done to them. `start` it first."""

    world: World
    backend: Backend
    log: Path
    seed: int
    plan: Plan = field(init=False)

    def start(self, seconds: int) -> None:
        """Two nodes, two workers, and jobs for so many seconds."""
        self.random = Random(self.seed)
        self.world.start_nodes(2)
        first, second = self.world.nodes
        self.workers = [
            self.world.worker("worker-1", "--slots", str(SLOTS), log=self.log, nodes=(first, second)),
            self.world.worker("worker-2", "--slots", str(SLOTS), "--client", log=self.log, nodes=(second,)),
        ]
        receiver = self.world.receiver.url
        self.plan = fleet_plan(receiver, soon(self.world.api, DEFINITIONS), seconds)
        self.plan.define(self.world.api)
        self.backlogs = [
            Backlog("backlog-http", self.plan, http(f"{receiver}/hold/0.2")),
            Backlog("backlog-work", self.plan, queue("work", seconds=0.01)),
        ]
        for backlog in self.backlogs:
            backlog.define(self.world.api)

    def observed(self) -> Observer:
        """Somebody who looks on; to be entered."""
        self._observer = Observer(self.world, sorted(self.plan.owed), self.seed)
        return self._observer

    # ---- what is done to it

    def fill(self, http: int, work: int) -> None:
        """So many more runs for the endpoint and for the workers."""
        for backlog, count in zip(self.backlogs, (http, work), strict=True):
            for begin in range(0, count, FILL_RUNS):
                backlog.fill(self.world.api, min(FILL_RUNS, count - begin))

    def strike(self, kind: str, victim: Process | None = None) -> str:
        """One fault of one process (any of the four), and its end."""
        processes: list[Process] = [*self.world.nodes, *self.workers]
        chosen = self.random.choice(processes) if victim is None else victim
        let_pass(self.random.uniform(0.2, 1.2))
        if kind == "pause":
            chosen.pause()
            let_pass(PAUSE_SECONDS)
            chosen.resume()
            return f"{kind} {chosen.name}"
        if kind == "terminate":
            chosen.terminate()
        else:
            chosen.kill()
        self._start_again(chosen)
        return f"{kind} {chosen.name}"

    def _start_again(self, process: Process) -> None:
        node = next((node for node in self.world.nodes if node is process), None)
        if node is None:
            process.spawn()
        else:
            node.start()

    def strike_store(self, kind: str, seconds: float) -> str:
        """One fault of the store, and its end; or what is no fault, but makes the next one stricter."""
        if kind == ALWAYS:
            self.backend.faults[kind](seconds)
            return kind
        lingers = DEAD_SECONDS if kind == "silent" else 0.0
        self.world.outage(kind, lambda: self.backend.faults[kind](seconds), lingers)
        return kind

    def in_flight(self) -> int:
        """Runs that are not final at this moment."""
        queues = self.world.api.must("GET", "/stats")["queues"]
        return sum(queue["due"] + queue["scheduled"] + queue["running"] for queue in queues)

    # ---- the end

    def judge(self, seconds: float) -> Verdict:
        """Wait until all is final, for so long at the most, and settle accounts."""
        self.world.wait_over(self.plan.end, seconds)
        eventually(self._nobody_reports, what="the last reports")
        runs = self.world.api.runs()
        nodes = frozenset(node.name for node in self.world.nodes)
        starts, reports = read_work(self.log, {run["id"]: run["job"] for run in runs})
        return Ledger(
            self.plan.owed,
            runs,
            [*self.world.receiver.arrivals, *starts],
            [*self.world.receiver.reports, *reports],
            self.world.all_faults(),
            {run: promise for backlog in self.backlogs for run, promise in backlog.acknowledged.items()},
            list(self._observer.seen.values()),
            {"worker-1": nodes, "worker-2": nodes},
            self.plan.lease_seconds,
            self.backend.url.startswith("sqlite"),
        ).judge()

    def _nobody_reports(self) -> bool:
        """Whether every attempt that a worker began was reported, or is nobody's any more: its process has died."""
        quiet_since = micros() - 2 * SECOND
        return all(line["at"] < quiet_since for line in read_log(self.log)[-50:])
