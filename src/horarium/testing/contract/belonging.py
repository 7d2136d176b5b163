"""Random sequences of acts of owners, workers and dying nodes on a few jobs, and the invariants in any order.

A deleted job's run is never handed to a worker again, and one that was put back is found in the queue that its job now
has. Hypothesis chooses the sequence. A node dies by losing everything but the database: what it had written is there,
what it meant to do next is not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from horarium.clock import Instant
from horarium.errors import HorariumError, StoreUnavailable
from horarium.model import Deferred, Failed, Outcome, Plan, Released, Run, RunChange, State
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.ports import RunFilter, Store
from horarium.rules.settling import settle
from horarium.stores.wakeups import LocalSignal
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from horarium.wire.definitions import read_definition

T = TypeVar("T")

JOB_NAMES = ("a", "b")
QUEUES = ("red", "blue")
names = st.sampled_from(JOB_NAMES)
queues = st.sampled_from(QUEUES)
outcomes = st.sampled_from((Failed("no"), Released(), Deferred(NOW)))


class Mortal:
    """The database as a node sees it that may die with its next plan written: a claim comes in just before that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dies = False
        self.claimed_before: list[Run] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        if not self.dies:
            return await self._store.commit_plans(plans, now)
        claimed = await self._store.claim_runs([f"pull/{queue}" for queue in QUEUES], 1, "w", now, now, now)
        self.claimed_before += claimed.runs
        await self._store.commit_plans(plans, now)
        raise StoreUnavailable("the node is gone")


class BelongingMachine(RuleBasedStateMachine):
    """What happens to the jobs, on the store under test."""

    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.runner.run(_awaited(open_store()))
        self.clock = ManualClock(NOW)
        self.held: list[Run] = []
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """A node with nothing in mind."""
        self.mortal = Mortal(self.store)
        self.operations = Operations(
            cast(Store, self.mortal), self.clock, LocalSignal(), self._entropy, lambda target: None
        )

    def _entropy(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big") if size > 2 else bytes(size)

    def do(self, work: Awaitable[T], *, dies: bool = False) -> T | None:
        """What the node answers; None if it refuses, or dies of it."""
        self.mortal.dies = dies
        try:
            return self.runner.run(_awaited(work))
        except HorariumError:
            return None
        finally:
            self.held += self.mortal.claimed_before
            if dies:
                self.begin()

    @initialize(queue=queues)
    def begin_with_work(self, queue: str) -> None:
        for name in JOB_NAMES:
            self.put(name, queue, dies=False)
            for _ in range(2):
                self.trigger(name)

    # -- what owners do

    @rule(name=names, queue=queues, dies=st.booleans())
    def put(self, name: str, queue: str, dies: bool) -> None:
        fields = {
            "name": name,
            "trigger": {"type": "interval", "every_seconds": 86_400},
            "target": {"type": "queue", "queue": queue},
            "retry": {"attempts_max": 100, "backoff_seconds": 0},
        }
        self.do(self.operations.jobs.put_job(read_definition(fields)), dies=dies)

    @rule(name=names, dies=st.booleans())
    def delete(self, name: str, dies: bool) -> None:
        self.do(self.operations.jobs.delete_job(name), dies=dies)

    @rule(name=names)
    def trigger(self, name: str) -> None:
        self.clock.advance(0.001)
        self.do(self.operations.jobs.trigger_job(name))

    # -- what workers do

    @rule(queue=queues, limit=st.integers(1, 3))
    def claim(self, queue: str, limit: int) -> None:
        now = self.clock.now()
        claimed = self.do(self.operations.claiming.claim([f"pull/{queue}"], limit, "w", now, now))
        for run in claimed.runs if claimed is not None else ():
            (job,) = self.runner.run(_awaited(self.store.get_jobs_by_id([run.job_id or ""])))
            assert job is not None
            assert job.deleted_at is None, "a deleted job's run was handed out"
            assert job.queue == run.queue, "a run was handed out from a queue that its job has left"
            self.held.append(run)

    @rule(data=st.data(), outcome=outcomes)
    def put_back(self, data: st.DataObject, outcome: Outcome) -> None:
        if self.held:
            run = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.clock.advance(0.001)
            self.do(self.operations.settling.settle([Settlement(run.id, run.token, outcome)]))

    @rule(data=st.data(), outcome=outcomes)
    def put_back_and_die(self, data: st.DataObject, outcome: Outcome) -> None:
        """By a node that knew nothing of what became of the job, and died once it was written."""
        if self.held:
            run = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self._lose(run, outcome)

    def _lose(self, run: Run, outcome: Outcome) -> None:
        """A node that has not seen its job puts the run back and dies; the next one claims from that queue."""
        now = self.clock.now()
        change = RunChange(settle(run, None, outcome, now), run.token, run.state)
        self.runner.run(_awaited(self.store.settle_runs([change], now)))
        self.begin()
        self.claim(run.queue, 3)

    @rule(queue=queues, deletes=st.booleans())
    def change_while_claimed(self, queue: str, deletes: bool) -> None:
        """Every job is changed while runs are claimed, and the nodes that have these die without noticing."""
        for each in QUEUES:
            self.claim(each, 1)
        for name in JOB_NAMES:
            if deletes:
                self.delete(name, dies=False)
            else:
                self.put(name, queue, dies=False)
        held, self.held = self.held, []
        for run in held:
            self._lose(run, Released())

    @rule()
    def a_dead_node_is_noticed(self) -> None:
        """Afterwards, everything that waits is where its job is."""
        self.runner.run(self._sweep())
        page = self.runner.run(
            _awaited(self.store.list_runs(RunFilter(states=frozenset({State.PENDING})), None, 1_000))
        )
        for run in page.items:
            (job,) = self.runner.run(_awaited(self.store.get_jobs_by_id([run.job_id or ""])))
            assert job is not None
            assert (job.deleted_at, job.queue) == (None, run.queue)

    async def _sweep(self) -> None:
        after = await self.operations.reconciler.sweep(None)
        while after is not None:
            after = await self.operations.reconciler.sweep(after)

    def teardown(self) -> None:
        try:
            self.clock.advance(3600)
            self.a_dead_node_is_noticed()
        finally:
            self.runner.run(_awaited(self.store.close()))
            self.runner.close()


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def run_belonging_machine(
    open_store: Callable[[], Awaitable[Store]], examples: int, steps: int, *, shorten: bool = True
) -> None:
    """Try this many sequences of at most this many steps, always the same ones. `shorten`: if one fails."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate, Phase.shrink) if shorten else (Phase.generate,),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    # Annotated as a class, but any factory will do.
    factory = cast("type[RuleBasedStateMachine]", partial(BelongingMachine, open_store))
    run_state_machine_as_test(factory, settings=chosen)
