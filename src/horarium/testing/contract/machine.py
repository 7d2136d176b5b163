"""Random sequences of calls, made on the store under test and on the memory store: every answer must be the same.

Hypothesis chooses the calls and shortens a sequence that fails. Its rules are synchronous and drive an event loop of
their own. Values come from small pools, so that names, keys and fire times collide often.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from operator import eq
from random import Random
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from horarium.clock import INSTANT_MIN, SECOND, Instant
from horarium.model import CLAIMED, TRANSITIONS, UNFINISHED, Job, Node, Plan, Run, RunChange, State, run_id
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import Beat, Claimed, JobFilter, RunFilter, Store
from horarium.stores.memory import MemoryStore
from horarium.testing.contract.base import StoreUnderTest
from horarium.testing.values import NOW, a_job, a_run

T = TypeVar("T")

JOB_NAMES = ("a", "b", "b.c")
RUN_NUMBERS = 10
QUEUES = ("http", "other")
MANY = 1_000
STEADY_AHEAD = 2 * SECOND

seconds = st.integers(0, 4)
limits = st.sampled_from((0, 1, 2, 3, MANY))
names = st.sampled_from(JOB_NAMES)
queues = st.lists(st.sampled_from(QUEUES), max_size=3)
job_ids = st.sampled_from([f"{name}-{generation}" for name in JOB_NAMES for generation in range(2)])
texts = st.none() | st.sampled_from((b"1", b'"\\u0000"'))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    job_id = draw(job_ids)
    return a_job(
        job_id[:-2],
        id=job_id,
        enabled=draw(st.booleans()),
        labels=draw(st.sampled_from(({}, {"x": "1"}, {"x": "1", "y": "2"}))),
        next_fire_at=draw(st.none() | seconds.map(lambda offset: NOW + offset * SECOND)),
    )


@st.composite
def runs(draw: st.DrawFn, now: Instant, state: State = State.PENDING) -> Run:
    number, job_id = draw(st.integers(0, RUN_NUMBERS - 1)), draw(st.none() | job_ids)
    fields: dict[str, Any] = {
        "state": state,
        "queue": draw(st.sampled_from(QUEUES)),
        "due_at": now + (draw(seconds) - 1) * SECOND,
        "priority": draw(st.integers(0, 1)),
        "unique_key": draw(st.sampled_from((None, None, None, "u", "v"))),
        "concurrency_key": draw(st.sampled_from((None, None, "k", "l"))),
        "concurrency_max": draw(st.integers(1, 2)),
        "serial": draw(st.booleans()),
        "lease_seconds": draw(st.sampled_from((1.0, 2.5))),
        "execution_seconds": draw(st.sampled_from((None, 3.0))),
        "start_by": draw(st.sampled_from((None, None, now + 2 * SECOND))),
        "payload": draw(texts),
    }
    run = a_run(number, **fields)
    if job_id is None:
        return run
    # A fire time may be asked for under two ids: the first one in holds it.
    cause = draw(st.sampled_from(("", "", "", "manual")))
    return replace(run, id=run_id(job_id, run.fire_at, cause), job_id=job_id, job=job_id[:-2])


@st.composite
def changes(draw: st.DrawFn, run: Run, now: Instant) -> RunChange:
    """A lawful change of this run, which may be looked for under a wrong token, state or lease."""
    state = draw(st.sampled_from(sorted(TRANSITIONS[run.state]) or [run.state]))
    finished = state not in UNFINISHED
    changed = replace(
        run,
        state=state,
        due_at=now + draw(seconds) * SECOND if state is State.PENDING else run.due_at,
        worker=draw(st.sampled_from((None, "w"))),
        lease_expires_at=now + draw(seconds) * SECOND if state in CLAIMED else None,
        started_at=now if state in CLAIMED else run.started_at,
        finished_at=now if finished else None,
        prune_at=now + draw(seconds) * SECOND if finished and draw(st.booleans()) else None,
        progress=draw(texts),
        error=draw(st.sampled_from((None, "ü"))),
        start_by=draw(st.sampled_from((None, run.start_by))),
    )
    token = run.token + draw(st.sampled_from((0, 0, 0, 0, 1, -1)))
    expected = draw(st.sampled_from((run.state, run.state, run.state, State.RUNNING)))
    return RunChange(changed, token, expected, draw(st.sampled_from((None, True, False))))


RECORD_NAMES = ("a", "a/1", "a/2", "b/1", "c")


@st.composite
def records(draw: st.DrawFn, version: int = 1) -> Record:
    labels = draw(st.sampled_from(({}, {"x": "1"}, {"x": "2", "y": "1"})))
    body = draw(st.sampled_from((b"", b"1", b"\0\xff")))
    return Record(name=draw(st.sampled_from(RECORD_NAMES)), body=body, labels=labels, version=version)


few_records = st.lists(records(), max_size=2).map(tuple)


@st.composite
def record_changes(draw: st.DrawFn) -> RecordChange:
    expected = draw(st.integers(0, 3))
    return RecordChange(draw(records(expected + 1)), expected, draw(st.booleans()), draw(few_records))


def population(random: Random) -> list[Run]:
    """Runs in every state to begin with, since a few calls alone seldom bring a run to its end."""
    return [_inhabitant(random, number) for number in range(2 * RUN_NUMBERS)]


def _inhabitant(random: Random, number: int) -> Run:
    state = random.choice((State.PENDING, State.PENDING, *State))
    instant = NOW + random.randint(0, 3) * SECOND
    job = a_job(name := random.choice(JOB_NAMES), id=f"{name}-0")
    run = a_run(number, of=job if random.random() < 0.7 else None)
    return replace(
        run,
        state=state,
        due_at=NOW + random.randint(-2, 2) * SECOND,
        queue=random.choice(QUEUES),
        priority=random.randint(0, 1),
        concurrency_key=random.choice((None, "k", "l")),
        concurrency_max=random.randint(1, 3),
        serial=random.random() < 0.5,
        start_by=random.choice((None, instant)),
        lease_seconds=2.0,
        lease_expires_at=instant if state in CLAIMED else None,
        finished_at=None if state in UNFINISHED else NOW,
        prune_at=None if state in UNFINISHED else random.choice((None, instant)),
    )


class StoreMachine(RuleBasedStateMachine):
    """Makes each call on both stores. `asked` remembers every id, to compare all of the state in the end."""

    def __init__(self, open_store: Callable[[str], Awaitable[Store]]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model: Store = MemoryStore()
        self.store: Store = self.runner.run(_opened(open_store))
        self.now = NOW
        self.asked: set[str] = set()
        self.deleted: set[str] = set()

    @property
    def steady(self) -> Instant:
        """The present on the steady scale, which is not wall time."""
        return self.now + STEADY_AHEAD

    def both(self, call: Callable[[Store], Awaitable[T]], alike: Callable[[T, T], bool] = eq) -> T:
        """The answer to this call, which must be the same from both."""

        async def answers() -> tuple[T, T]:
            return await call(self.model), await call(self.store)

        expected, actual = self.runner.run(answers())
        assert alike(expected, actual), f"expected {expected}, got {actual}"
        return expected

    def known_runs(self) -> list[Run]:
        found = self.runner.run(_awaited(self.model.get_runs(sorted(self.asked))))
        return [run for run in found if run is not None]

    def draw_changes(self, data: st.DataObject, count: int, others: int = 2) -> list[RunChange]:
        """Changes of known runs, of which one in `others` + 1 brings something along."""
        # A finished run has nothing to change; of these a few are enough.
        known = [run for number, run in enumerate(self.known_runs()) if not run.finished or number % 4 == 0]
        if not known:
            return []
        picked = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=count))
        return [self.bring_along(data, data.draw(changes(run, self.now)), others) for run in picked]

    def bring_along(self, data: st.DataObject, change: RunChange, others: int) -> RunChange:
        if data.draw(st.integers(0, others)):
            return change
        return replace(change, follow_ups=tuple(self.draw_runs(data, 2, least=1)), records=data.draw(few_records))

    def draw_runs(self, data: st.DataObject, count: int, least: int = 0) -> list[Run]:
        drawn = data.draw(st.lists(runs(self.now), min_size=least, max_size=count))
        self.asked.update(run.id for run in drawn)
        return drawn

    # -- what time and callers do

    @initialize(seed=st.integers(0, 1_000))
    def begin(self, seed: int) -> None:
        inhabitants = population(Random(seed))
        self.asked.update(run.id for run in inhabitants)
        self.both(lambda store: store.add_jobs([a_job(name, id=f"{name}-0", next_fire_at=NOW) for name in JOB_NAMES]))
        self.both(lambda store: store.add_runs(inhabitants))

    # Most instants are whole seconds from the first one: to be there at the very end of a lease is no rare chance.
    @rule(passed=st.sampled_from((1, SECOND - 1, SECOND, SECOND, SECOND, 2 * SECOND)))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule(added=st.lists(jobs(), max_size=3), along=few_records)
    def add_jobs(self, added: list[Job], along: tuple[Record, ...]) -> None:
        self.both(lambda store: store.add_jobs(added, {job.id: along for job in added[:1]}))

    @rule(data=st.data(), count=st.integers(1, 3))
    def commit_plans(self, data: st.DataObject, count: int) -> None:
        plans = [plan for _ in range(count) if (plan := self.draw_plan(data)) is not None]
        won = self.both(lambda store: store.commit_plans(plans, self.steady))
        self.deleted.update(
            plan.job.id for plan, did in zip(plans, won, strict=True) if did and plan.job.deleted_at is not None
        )

    def draw_plan(self, data: st.DataObject) -> Plan | None:
        wanted = data.draw(job_ids)
        found = self.runner.run(_awaited(self.model.get_jobs_by_id([wanted, f"{wanted[:-1]}0"])))
        job = found[0] or found[1]
        if job is None:
            return None
        planned = replace(
            job,
            version=job.version + data.draw(st.sampled_from((0, 0, 0, -1))),
            priority=data.draw(st.integers(0, 3)),
            enabled=data.draw(st.booleans()),
            labels=data.draw(st.sampled_from(({}, {"x": "1"}))),
            next_fire_at=data.draw(st.none() | seconds.map(lambda offset: self.now + offset * SECOND)),
            deleted_at=self.now if data.draw(st.integers(0, 3)) == 0 else job.deleted_at,
        )
        known = self.known_runs()
        drawn = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        withdrawals = list({run.id: run for run in drawn}.values())  # no plan names one twice
        added = self.draw_runs(data, 3)
        if data.draw(st.booleans()):
            added += [replace(run, payload=b"again") for run in withdrawals if run.state is State.PENDING]
        changed = tuple(self.draw_changes(data, 2, others=1))
        return Plan(planned, tuple(added), changed, tuple(withdrawals), data.draw(few_records))

    @rule(data=st.data())
    def add_runs(self, data: st.DataObject) -> None:
        added = self.draw_runs(data, 5)
        along = data.draw(few_records)
        self.both(lambda store: store.add_runs(added, {run.id: along for run in added[:2]}))

    @rule(asked=queues, limit=limits, window=st.sampled_from((0, 0, SECOND)))
    def claim(self, asked: list[str], limit: int, window: int) -> None:
        until = self.now + window
        self.both(
            lambda store: store.claim_runs(asked, limit, "w", self.now, until, self.steady),
            lambda expected, actual: _claims_the_same(expected, actual, limit, until),
        )

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        drawn = self.draw_changes(data, 4)
        self.both(lambda store: store.settle_runs(drawn, self.steady))
        self.both(lambda store: store.get_runs([change.run.id for change in drawn]))
        self.both(lambda store: store.job_health([change.run.job_id or "" for change in drawn]))

    @rule(data=st.data(), stale=st.sampled_from((0, 0, 0, 1)))
    def heartbeat(self, data: st.DataObject, stale: int) -> None:
        known = self.known_runs()
        if not known:
            return
        picked = data.draw(st.lists(st.sampled_from(known), max_size=4))
        beats = [Beat(run.id, run.token - stale, data.draw(texts)) for run in picked]
        self.both(lambda store: store.heartbeat_runs(beats, self.steady))

    @rule(limit=limits)
    def prune(self, limit: int) -> None:
        # Which deleted jobs go first is left open, so the limit must not choose among them.
        bound = max(limit, len(self.deleted))
        self.both(lambda store: store.prune_runs(self.now, bound))

    @rule(job_id=job_ids, keep=st.integers(0, 2), limit=limits)
    def trim(self, job_id: str, keep: int, limit: int) -> None:
        self.both(lambda store: store.trim_runs(job_id, keep, limit))

    @rule(changed=st.lists(record_changes(), max_size=4))
    def put_records(self, changed: list[RecordChange]) -> None:
        self.both(lambda store: store.put_records(changed))

    @rule(prefix=st.sampled_from(("", "a", "a/", "b/")), until=st.sampled_from(("", "1", "2", "z")), limit=limits)
    def prune_records(self, prefix: str, until: str, limit: int) -> None:
        self.both(lambda store: store.prune_records(prefix, until, limit))

    @rule(name=names, since=seconds)
    def beat_node(self, name: str, since: int) -> None:
        node = Node(name=name, roles=("api",), started_at=NOW, beat_at=self.now)
        self.both(lambda store: store.beat_node(node))
        self.both(lambda store: store.list_nodes(self.now - since * SECOND))

    # -- what readers see

    @rule(limit=limits, ahead=seconds, back=st.none() | seconds)
    def due_and_overdue(self, limit: int, ahead: int, back: int | None) -> None:
        until = self.now + ahead * SECOND
        after = None if back is None else until - back * SECOND
        self.both(lambda store: store.due_jobs(until, limit, after))
        self.both(lambda store: store.overdue_runs(self.now, limit, self.steady))

    @rule(
        limit=st.integers(1, 4),
        after=st.none() | names,
        labels=st.sampled_from(({}, {"x": "1"})),
        enabled=st.none() | st.booleans(),
        prefix=st.none() | names,
    )
    def list_jobs(
        self, limit: int, after: str | None, labels: dict[str, str], enabled: bool | None, prefix: str | None
    ) -> None:
        where = JobFilter(labels, enabled, prefix)
        self.both(lambda store: store.list_jobs(where, after, limit))

    @rule(
        limit=st.integers(1, 4),
        after=st.none() | st.integers(0, RUN_NUMBERS),
        job=st.none() | names,
        states=st.frozensets(st.sampled_from(State), max_size=2),
        queue=st.none() | st.sampled_from(QUEUES),
        bounds=st.tuples(st.none() | st.integers(0, RUN_NUMBERS), st.none() | st.integers(0, RUN_NUMBERS)),
    )
    def list_runs(
        self,
        limit: int,
        after: int | None,
        job: str | None,
        states: frozenset[State],
        queue: str | None,
        bounds: tuple[int | None, int | None],
    ) -> None:
        since, until = (None if number is None else a_run(number).fire_at for number in bounds)
        where = RunFilter(job, states, queue, since, until)
        page = self.both(lambda store: store.list_runs(where, None if after is None else a_run(after).id, limit))
        if page.next_after is not None:
            self.both(lambda store: store.list_runs(where, page.next_after, limit))

    @rule(
        where=st.builds(
            RecordFilter,
            prefix=st.sampled_from(("", "a", "a/")),
            since=st.sampled_from(("", "", "1", "2")),
            until=st.sampled_from((None, None, "2", "b")),
            labels=st.sampled_from(({}, {}, {"x": "1"}, {"y": "1", "x": "2"})),
            descending=st.booleans(),
        ),
        after=st.none() | st.sampled_from(RECORD_NAMES),
        limit=st.integers(1, 3),
    )
    def list_records(self, where: RecordFilter, after: str | None, limit: int) -> None:
        page = self.both(lambda store: store.list_records(where, after, limit))
        if page.next_after is not None:
            self.both(lambda store: store.list_records(where, page.next_after, limit))

    @rule(key=st.sampled_from(("u", "v")))
    def counts_and_keys(self, key: str) -> None:
        self.both(lambda store: store.stats(self.now))
        self.both(lambda store: store.get_run_by_key(key))

    def teardown(self) -> None:
        try:
            everyone = sorted(f"{name}-{generation}" for name in JOB_NAMES for generation in range(2))
            self.both(lambda store: store.get_runs(sorted(self.asked)))
            self.both(lambda store: store.get_jobs_by_id(everyone))
            self.both(lambda store: store.get_jobs(JOB_NAMES))
            self.both(lambda store: store.job_health(everyone))
            self.both(lambda store: store.failing_jobs(MANY))
            self.both(lambda store: store.unfinished_runs(everyone))
            self.both(lambda store: store.list_runs(RunFilter(), None, MANY))
            self.both(lambda store: store.get_records(RECORD_NAMES))
            self.both(lambda store: store.list_records(RecordFilter(labels={"x": "1"}), None, MANY))
            self.both(lambda store: store.stats(self.now))
            self.both(lambda store: store.list_nodes(INSTANT_MIN))
        finally:
            self.runner.run(_awaited(self.store.close()))
            self.runner.close()


def _claims_the_same(expected: Claimed, actual: Claimed, limit: int, until: Instant) -> bool:
    if (actual.runs, actual.jobs) != (expected.runs, expected.jobs):
        return False
    if actual.next_due_at == expected.next_due_at:
        return True
    at_once = actual.next_due_at is not None and actual.next_due_at <= until
    left = expected.next_due_at is not None and expected.next_due_at <= until
    return at_once and (left or len(actual.runs) == limit)


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _opened(open_store: Callable[[str], Awaitable[Store]]) -> Store:
    return await open_store(f"contract-{secrets.token_hex(6)}")


def run_machine(open_store: Callable[[str], Awaitable[Store]], examples: int, steps: int, *, shorten: bool) -> None:
    """Try this many sequences of at most this many calls, always the same ones. `shorten`: if one fails."""
    search(partial(StoreMachine, open_store), examples, steps, shorten=shorten)


def search(machine: Callable[[], StoreMachine], examples: int, steps: int, *, shorten: bool) -> None:
    """Try sequences of calls on new machines, as `run_machine` does."""
    phases = (Phase.generate, Phase.shrink) if shorten else (Phase.generate,)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    # Annotated as a class, but any factory will do.
    factory = cast("type[RuleBasedStateMachine]", machine)
    run_state_machine_as_test(factory, settings=chosen)


class MachineContract(StoreUnderTest):
    """`machine_examples`: how many sequences are tried. Set it higher for a long run."""

    machine_examples = 40
    machine_steps = 40

    def test_it_answers_any_sequence_of_calls_as_the_memory_store_does(self) -> None:
        run_machine(self.open_store, self.machine_examples, self.machine_steps, shorten=True)
