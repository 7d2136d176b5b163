"""Two hosts that jobs ask over HTTP, one of which is dead at times, and what a circuit breaker must make of that: few
requests to the dead one, no attempt that was none, no delay of the other's runs, and an end once it answers again.

The hosts count what they are asked; holds and streaks of the product are not looked at.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from horarium.clock import SECOND
from horarium.model import EventKind, Failed, HttpTarget, Job, Outcome, Run, State, Succeeded
from horarium.ports import Assignment, Control
from horarium.testing.simulate.chances import Chances
from horarium.testing.simulate.trace import Trace

DEAD, WELL = "dead.example", "well.example"
FAILURES, PROBE_SECONDS = 4, 2.0
"""The settings of the breaker."""
KNOWN = 4 * SECOND
"""Within this every node knows that it is open, and a run of the host that is well begins, where nothing is wrong."""
ON_TIME = 10 * SECOND
"""Within this a run no longer waits for a host that answers."""
ALIVE, GONE = (3, 8, 15), (6, 15, 30)
"""Seconds for which the dead one answers, and for which it does not."""


class Hosts:
    """The hosts and their books. `steady`: for how many seconds some node has been well; `well_for`: one of them;
    `died_at`: when a node died last."""

    def __init__(self, trace: Trace, chances: Chances, runs: Mapping[str, Run]) -> None:
        self.steady: Callable[[], float] = lambda: 0.0
        self.well_for: Callable[[str], float] = lambda node: 0.0
        self.died_at: Callable[[], int] = lambda: 0
        self.calm = False
        self.judged = 0
        self._trace = trace
        self._runs = runs
        self._chance = chances.of("hosts")
        self._answers, self._until = False, -1
        self._in_a_row: dict[str, list[int]] = defaultdict(list)
        """Of each node, when the last requests to the dead host failed, since one was answered."""
        self._asked_at = -KNOWN
        self._answered_at: int | None = None
        self._requests: dict[str, int] = defaultdict(int)

    def _is_up(self, host: str) -> bool:
        while self._until < self._trace.elapsed:
            self._answers = not self._answers
            seconds = self._chance.choice(ALIVE if self._answers else GONE)
            self._until = max(self._until, 0) + seconds * SECOND
        return self.calm or host == WELL or self._answers

    async def ask(self, node: str, run: Run, job: Job | None) -> Outcome:
        """A request of this node."""
        host = host_of(job)
        self._requests[run.id] += 1
        if host == DEAD:
            self._look_at(node, run)
        elif run.attempt == 1 and job is not None and job.updated_at < run.created_at and _is_free(run):
            self._is_on_time(run)
        is_up = self._is_up(host)
        self._trace.note(f"{node} asks {host} for {run.id[-6:]}, which {'answers' if is_up else 'is dead'}")
        await asyncio.sleep(self._chance.random() * 0.3)
        if not is_up:
            self._in_a_row[node].append(self._trace.elapsed)
            self._answered_at = None
            return Failed("no connection", retryable=True)
        if host == DEAD:
            self._in_a_row.clear()
            self._answered_at = self._trace.elapsed if self._answered_at is None else self._answered_at
        return Succeeded(b'"done"')

    def _look_at(self, node: str, run: Run) -> None:
        """Once it is open, requests are probes: one at a time."""
        since, self._asked_at = self._trace.elapsed - self._asked_at, self._trace.elapsed
        opened = [
            at[FAILURES - 1] for name, at in self._in_a_row.items() if len(at) >= FAILURES and self._saw(name, at)
        ]
        if opened and self._trace.elapsed > min(opened) + KNOWN:
            self.judged += 1
            if since < PROBE_SECONDS * SECOND * 0.9:
                self._trace.fail(f"run {run.id} asks a dead host {since / SECOND:.2f} s after another did")

    def _saw(self, node: str, failed: list[int]) -> bool:
        return self.well_for(node) * SECOND > self._trace.elapsed - failed[0]

    def _is_on_time(self, run: Run) -> None:
        self.judged += 1
        late = self._trace.wall - max(run.due_at, run.created_at)
        if min(self.steady() * SECOND, late) > KNOWN:
            self._trace.fail(f"run {run.id} asks a host that is well {late / SECOND:.0f} s late")

    def changed(self, new: Run, job: Job | None) -> None:
        """A run of theirs was written. One that failed has asked as often as it was tried."""
        if new.state is not State.FAILED or new.disposition is not None or not host_of(job):
            return
        self.judged += 1
        if self.died_at() < 0 and self._requests[new.id] < new.attempt:
            self._trace.fail(
                f"run {new.id} failed after {new.attempt} attempts, of which {self._requests[new.id]} asked"
            )

    def look(self, jobs: Mapping[str, list[Job]]) -> None:
        """Where the host has answered for a while, nothing waits for it any more."""
        if self._answered_at is None or self._trace.elapsed < self._answered_at + ON_TIME:
            return
        for run in self._runs.values():
            job = jobs.get(run.job_id or "", [None])[-1]
            held = run.history and run.history[-1].kind is EventKind.HELD
            if run.state is State.PENDING and held and host_of(job) == DEAD and _is_free(run):
                self._trace.fail(f"run {run.id} waits for a host that has answered for {ON_TIME // SECOND} s")


def _is_free(run: Run) -> bool:
    """Whether it waits for no other run."""
    return not run.serial and run.concurrency_key is None


def host_of(job: Job | None) -> str:
    """The host that a job asks."""
    target = None if job is None else job.target
    return target.url.split("/")[2] if isinstance(target, HttpTarget) else ""


class Asking:
    """A delivery over HTTP of one node, in a world that has no network."""

    def __init__(self, node: str, hosts: Hosts) -> None:
        self._node = node
        self._hosts = hosts

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome:
        """Ask the host."""
        return await self._hosts.ask(self._node, assignment.run, assignment.job)

    async def close(self) -> None:
        """There is nothing to close."""
