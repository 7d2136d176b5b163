"""What goes on in the simulated world: the jobs, what their handlers do, what people and remote workers ask for.

Everything is drawn from the seed. What a handler does is a hash of run and token, so that it does not depend on which
node gets there first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.buses.memory import MemoryBroker
from horarium.clock import SECOND, Clock, Instant, to_datetime, to_instant, to_text
from horarium.delivery.context import RunContext
from horarium.delivery.handler import Defer, Discard, Retry
from horarium.errors import HorariumError
from horarium.model import Cancelled, Cause, Deferred, Failed, Outcome, Released, Run, Succeeded, fraction, uuid7
from horarium.operations.facade import Operations
from horarium.operations.settling import Settlement
from horarium.policies import Overlap
from horarium.testing.simulate.follow_ups import ON
from horarium.testing.simulate.node import SimulatedNode
from horarium.testing.simulate.watch import Books
from horarium.wire.definitions import JobDefinition, definition_of, read_definition

NAMES = tuple(f"job-{index}" for index in range(5))
HANDLERS = ("alpha", "beta")
QUICK_WORLDS, QUICK = 0.3, 0.97
"""In how many worlds most handlers return at once, so that runs are claimed ahead of free places, and how many do."""
BURST_MAX = 24
QUEUES = ("pull/red", "pull/blue")
PERSON = principal("person", "person", "local", [Role.ADMIN])
"""Who asks for all that people ask for."""


def a_trigger(chance: Random, now: Instant) -> dict[str, Any]:
    """A rule that fires within seconds."""
    kind = chance.randrange(9)
    if kind == 0:
        return {"type": "once", "at": to_text(now + chance.randrange(1, 20) * SECOND)}
    if kind == 1:
        return {
            "type": "cron",
            "expression": f"*/{chance.choice((1, 2, 5, 10))} * * * * *",
            "timezone": "Europe/Berlin",
        }
    if kind == 2:
        parts = [{"type": "cron", "expression": "*/7 * * * * *"}, {"type": "cron", "expression": "*/5 * * * * *"}]
        return {"type": "any_of", "triggers": parts}
    if kind == 3:
        return {"type": "cron", "expression": "0 * * * *", "timezone": "UTC"}
    interval: dict[str, Any] = {"type": "interval", "every_seconds": chance.choice((1, 2, 3, 5, 8, 1.5))}
    if kind == 8:
        return {**interval, "from": "end"}
    return interval if kind < 6 else {**interval, "anchor": to_text(now - chance.randrange(100) * SECOND)}


def a_definition(chance: Random, name: str, now: Instant, on_bus: float = 0.0) -> JobDefinition:
    """A job with policies of every kind."""
    heartbeat = chance.choice((1, 2, 5))
    window = chance.choice(({}, {}, {"window_seconds": 5}))
    fields: dict[str, Any] = {
        "name": name,
        "trigger": a_trigger(chance, now),
        "target": _a_target(chance, on_bus),
        "catch_up": {"policy": chance.choice(("none", "latest", "all")), **window},
        "overlap": chance.choice([overlap.value for overlap in Overlap]),
        "retry": {"attempts_max": chance.randint(1, 4), "backoff_seconds": chance.choice((0, 0.5, 2))},
        "timeouts": {"heartbeat_seconds": heartbeat, **_limits(chance)},
        "jitter_seconds": chance.choice((0, 0, 0, 1.5)),
        "priority": chance.choice((0, 0, 5)),
        "retention": {"finished_seconds": chance.choice((None, None, 5))},
        "on": ON.get(name, {}),
    }
    if chance.random() < 0.3:
        fields["concurrency"] = {"key": chance.choice(("k1", "k2")), "max": chance.randint(1, 2)}
    if chance.random() < 0.2:
        fields["fires_max"] = chance.randint(1, 6)
    if chance.random() < 0.15:
        fields["buffer_max"] = chance.randint(1, 3)
    if chance.random() < 0.15:
        fields["ends_at"] = to_datetime(now + chance.randrange(40, 60) * SECOND)
    if chance.random() < 0.15:
        fields["starts_at"] = to_datetime(now + chance.randrange(1, 10) * SECOND)
    return read_definition(fields)


def _a_target(chance: Random, on_bus: float = 0.0) -> dict[str, Any]:
    if on_bus and chance.random() < on_bus:
        return {"type": "bus"}
    if chance.random() < 0.75:
        return {"type": "handler", "name": chance.choice(HANDLERS)}
    return {"type": "queue", "queue": chance.choice(QUEUES).removeprefix("pull/")}


def _limits(chance: Random) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if chance.random() < 0.5:
        limits["execution_seconds"] = chance.choice((1, 3))
    if chance.random() < 0.2:
        limits["start_seconds"] = chance.choice((2, 6))
    return limits


class Behaviour:
    """What the work is like. `calm` ends what would hang for ever."""

    def __init__(self, seed: int, books: Books) -> None:
        self._seed = seed
        self._books = books
        self._quick = fraction(seed, "quick") < QUICK_WORLDS
        self.calm: asyncio.Event = asyncio.Event()
        self.broker = MemoryBroker()

    def handler(self, clock: Clock) -> Callable[[RunContext], Any]:
        """The handler of one node."""

        async def perform(run: RunContext) -> Any:
            self._books.begun(run.id, run.token, run.attempt, clock.now(), to_instant(run.due_at))
            return await self._act(run, clock)

        return perform

    async def _act(self, run: RunContext, clock: Clock) -> Any:
        dice = fraction(self._seed, run.id, run.token)
        if self.calm.is_set() or dice < (QUICK if self._quick else 0.4):
            return {"token": run.token}
        if dice < 0.65:
            await asyncio.sleep(dice * 5)
            return None
        if dice < 0.8:
            raise RuntimeError("it failed")
        if dice < 0.83:
            raise Discard("never again")
        if dice < 0.86:
            raise Retry("soon again", after=0.2)
        if dice < 0.9:
            raise Defer(to_datetime(clock.now()) + timedelta(seconds=2))
        if dice < 0.95:
            asked = asyncio.ensure_future(run.cancelled.wait())
            calm = asyncio.ensure_future(self.calm.wait())
            try:
                await asyncio.wait([asked, calm], return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
                calm.cancel()
            raise RuntimeError("stopped as asked")
        await self.calm.wait()
        return None

    def handed_out(self, run: Run) -> None:
        """A remote worker was given this run."""
        self._books.answers.handed_out(run.id, run.token)

    def outcome(self, run: Run, now: Instant) -> Outcome | None:
        """What a remote worker reports; None: nothing, ever."""
        dice = fraction(self._seed, run.id, run.token, "remote")
        if self.calm.is_set() or dice < 0.55:
            return Succeeded(b'"done"')
        if dice < 0.7:
            return Failed("remote failure", retryable=dice < 0.68)
        if dice < 0.8:
            return Deferred(now + SECOND)
        if dice < 0.85:
            return Released()
        return Cancelled() if dice < 0.9 else None


class RemoteWorker:
    """Someone far away who polls, works, and reports late now and then."""

    def __init__(
        self, name: str, chance: Random, nodes: Callable[[], SimulatedNode | None], behaviour: Behaviour
    ) -> None:
        self._name = name
        self._chance = chance
        self._nodes = nodes
        self._behaviour = behaviour

    async def work(self) -> None:
        """For as long as the world lasts."""
        while True:
            node = self._nodes()
            try:
                if node is not None:
                    await self._round(node)
            except HorariumError:
                pass
            await asyncio.sleep(0.05 + self._chance.random() * 0.3)

    async def _round(self, node: SimulatedNode) -> None:
        queues = QUEUES if self._chance.random() < 0.5 else (self._chance.choice(QUEUES),)
        poll = node.call(node.runtime.claims.claim(queues, self._chance.randint(1, 3), self._name, 2.0))
        if self._chance.random() < 0.1:
            poll = asyncio.wait_for(poll, self._chance.random() * 2)
        try:
            claimed = await poll
        except TimeoutError:
            return
        for run in claimed.runs:
            self._behaviour.handed_out(run)
        for run in claimed.runs:
            await self._perform(run)

    async def _perform(self, run: Run) -> None:
        calm = self._behaviour.calm.is_set()
        if not calm and self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.choice((0.1, 0.5, 4.0)))
        node = self._nodes()
        if node is None:
            return
        operations = node.runtime.operations
        if self._chance.random() < 0.2:
            await node.call(operations.runs.heartbeat(run.id, run.token, b"1"))
        outcome = self._behaviour.outcome(run, node.clock.now())
        if outcome is not None:
            twice = 1 if calm or self._chance.random() < 0.9 else 2
            await node.call(operations.settling.settle([Settlement(run.id, run.token, outcome)] * twice))


class People:
    """Those who define, change, pause, trigger and cancel."""

    def __init__(
        self, chance: Random, nodes: Callable[[], SimulatedNode | None], books: Books, on_bus: float = 0.0
    ) -> None:
        self._chance = chance
        self._nodes = nodes
        self._books = books
        self._asked = 0
        self._on_bus = on_bus
        self._acts: tuple[Callable[[SimulatedNode, str], Any], ...] = (
            self._put, self._put, self._again, self._patch, self._pause, self._resume, self._resume, self._trigger,
            self._trigger, self._cancel, self._cancel, self._cancel, self._retry, self._backfill, self._burst,
            self._delete, self._delete_and_die, self._move,
        )  # fmt: skip

    async def define(self, count: int) -> None:
        """The first jobs."""
        for name in NAMES[:count]:
            if (node := self._nodes()) is not None:
                await self._try(self._put, node, name)

    async def act(self) -> None:
        """Something, to some job."""
        node = self._nodes()
        if node is not None:
            await self._try(self._chance.choice(self._acts), node, self._chance.choice(NAMES))

    async def _try(self, act: Callable[[SimulatedNode, str], Any], node: SimulatedNode, name: str) -> None:
        self._books.trace.note(f"{node.name} {act.__name__} {name}")
        self._asked += 1
        try:
            with acting(Origin(principal=PERSON, request_id=f"request-{self._asked}")):
                await act(node, name)
        except HorariumError as error:
            self._books.trace.note(f"refused: {type(error).__name__}")

    def _operations(self, node: SimulatedNode) -> Operations:
        return node.runtime.operations

    async def _put(self, node: SimulatedNode, name: str) -> None:
        await node.call(
            self._operations(node).jobs.put_job(a_definition(self._chance, name, node.clock.now(), self._on_bus))
        )

    async def _again(self, node: SimulatedNode, name: str) -> None:
        """The same content again: nothing may change."""
        operations = self._operations(node)
        job = await node.call(operations.jobs.get_job(name))
        answer, created = await node.call(operations.jobs.put_job(definition_of(job)))
        unchanged = answer.id == job.id and answer.updated_at == job.updated_at
        if not created and unchanged and definition_of(answer) != definition_of(job):
            self._books.trace.fail(f"job {name}: the same content again changed it")

    async def _patch(self, node: SimulatedNode, name: str) -> None:
        changes: dict[str, Any] = self._chance.choice(
            (
                {"labels": {"a": str(self._chance.randrange(3))}},
                {"trigger": a_trigger(self._chance, node.clock.now())},
                {"overlap": self._chance.choice([overlap.value for overlap in Overlap])},
                {"enabled": self._chance.random() < 0.5},
                {"enabled": True, "trigger": a_trigger(self._chance, node.clock.now())},
                {"target": _a_target(self._chance, self._on_bus)},
            )
        )
        await node.call(self._operations(node).jobs.patch_job(name, changes))

    async def _pause(self, node: SimulatedNode, name: str) -> None:
        job = await node.call(self._operations(node).jobs.pause_job(name, "because"))
        self._books.jobs.acknowledged_pause(job)

    async def _resume(self, node: SimulatedNode, name: str) -> None:
        await node.call(self._operations(node).jobs.resume_job(name))

    async def _delete(self, node: SimulatedNode, name: str) -> None:
        if self._chance.random() < 0.4:
            await node.call(self._operations(node).jobs.delete_job(name))

    async def _delete_and_die(self, node: SimulatedNode, name: str) -> None:
        """The node is killed once the delete is committed, before what follows; its runs are being claimed."""
        if self._chance.random() < 0.4:
            return
        await node.call(self._operations(node).jobs.trigger_job(name, b"{}"))
        triggers = [asyncio.ensure_future(self._trigger_somewhere(name)) for _ in range(3)]
        node.die_after(_deletes)
        try:
            await asyncio.sleep(self._chance.random() * 0.1)
            await node.call(self._operations(node).jobs.delete_job(name))
        finally:
            node.die_after(None)
            await asyncio.wait(triggers)

    async def _trigger_somewhere(self, name: str) -> None:
        await asyncio.sleep(self._chance.random() * 0.1)
        if (node := self._nodes()) is not None:
            with suppress(HorariumError):
                await node.call(self._operations(node).jobs.trigger_job(name, b"{}"))

    async def _move(self, node: SimulatedNode, name: str) -> None:
        """The job goes to another queue while workers who poll for its runs go away."""
        old, new = self._chance.sample(QUEUES, 2)
        polls = [asyncio.ensure_future(self._leave_poll(old)) for _ in range(2)]
        try:
            target = {"type": "queue", "queue": new.removeprefix("pull/")}
            await node.call(self._operations(node).jobs.patch_job(name, {"target": target}))
        finally:
            await asyncio.wait(polls)

    async def _leave_poll(self, queue: str) -> None:
        """Poll, and go away after a moment, with or without runs."""
        if (node := self._nodes()) is None:
            return
        poll = node.call(node.runtime.claims.claim((queue,), 3, "leaver", 2.0))
        with suppress(TimeoutError, HorariumError):
            claimed = await asyncio.wait_for(poll, self._chance.random() * 0.5)
            for run in claimed.runs:
                self._books.answers.handed_out(run.id, run.token)

    async def _trigger(self, node: SimulatedNode, name: str) -> None:
        key = self._chance.choice((None, None, f"key-{self._chance.randrange(4)}"))
        run = await node.call(self._operations(node).jobs.trigger_job(name, b"{}", key))
        if run.id not in self._books.runs:
            self._books.trace.fail(f"trigger_job answered with run {run.id}, which was never made")

    async def _burst(self, node: SimulatedNode, name: str) -> None:
        """Many runs at once, that belong to no job."""
        now = node.clock.now()
        lease, queue = self._chance.choice((1, 2, 5)), f"handler/{self._chance.choice(HANDLERS)}"
        runs = [
            Run(
                id=uuid7(now, self._chance.randbytes(10)),
                queue=queue,
                fire_at=now,
                due_at=now,
                created_at=now,
                cause=Cause.ENQUEUED,
                lease_seconds=lease,
            )
            for _ in range(self._chance.randrange(5, BURST_MAX))
        ]
        await node.call(self._operations(node).runs.add_runs(runs))

    async def _backfill(self, node: SimulatedNode, name: str) -> None:
        end = to_datetime(node.clock.now())
        await node.call(self._operations(node).jobs.backfill_job(name, end - timedelta(seconds=30), end))

    async def _cancel(self, node: SimulatedNode, name: str) -> None:
        if (run := self._some_run(lambda run: not run.finished)) is not None:
            self._books.answers.acknowledged_cancel(await node.call(self._operations(node).runs.cancel_run(run.id)))

    async def _retry(self, node: SimulatedNode, name: str) -> None:
        if (run := self._some_run(lambda run: run.finished)) is not None:
            await node.call(self._operations(node).runs.retry_run(run.id))

    def _some_run(self, fits: Callable[[Run], bool]) -> Run | None:
        fitting = [run for run in list(self._books.runs.values())[-50:] if fits(run)]
        return self._chance.choice(fitting) if fitting else None


def _deletes(method: str, args: tuple[Any, ...], answer: Any) -> bool:
    """Whether this call of the store has just deleted a job."""
    return method == "commit_plans" and any(
        done and plan.job.deleted_at is not None for plan, done in zip(args[0], answer, strict=True)
    )
