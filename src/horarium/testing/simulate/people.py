"""Those who ask for things in the simulated world: jobs defined and changed, runs triggered, cancelled, retried, alone
and many at once, and pings of work that is done elsewhere. What they are answered is checked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count as counted
from random import Random
from typing import Any

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.clock import SECOND, to_datetime
from horarium.errors import HorariumError
from horarium.model import Cause, Job, Run, State, uuid7
from horarium.model.channels import WebhookChannel
from horarium.operations.facade import Operations
from horarium.operations.runs.bulk import CANCELLED, Selection
from horarium.operations.runs.runs import RETRIED
from horarium.operations.settling.turns import QueueSettings
from horarium.policies import Overlap
from horarium.rules.pinging import Ping, Sign
from horarium.testing.simulate.batched import BatchPeople
from horarium.testing.simulate.fair import BURST, WEIGHTS, a_key
from horarium.testing.simulate.follow_ups import CHANNELS
from horarium.testing.simulate.gates import GatePeople
from horarium.testing.simulate.node import SimulatedNode
from horarium.testing.simulate.watch import SEEN, Books
from horarium.testing.simulate.workload import (
    BURST_MAX,
    HANDLERS,
    NAMES,
    QUEUES,
    RACE_MAX,
    SHARES,
    a_definition,
    a_target,
    a_trigger,
    how_many_at_once,
    is_race,
)
from horarium.wire.definitions import definition_of

PERSON = principal("person", "person", "local", [Role.ADMIN])
"""Who asks for all that people ask for."""
BY_REQUEST = "cancelled by request"
CROWDING = 0.7
"""How often it is a burst, a trigger or a cancel that comes in, where it is crowded."""


class RunPeople:
    """Those who ask for something to be done with runs."""

    def __init__(self, chance: Random, books: Books) -> None:
        self._chance = chance
        self._books = books

    def _operations(self, node: SimulatedNode) -> Operations:
        return node.runtime.operations

    async def _cancel(self, node: SimulatedNode, name: str) -> None:
        if (run := self._some_run(lambda run: not run.finished)) is not None:
            self._books.answers.acknowledged_cancel(await node.call(self._operations(node).runs.cancel_run(run.id)))

    async def _retry(self, node: SimulatedNode, name: str) -> None:
        if (run := self._some_run(lambda run: run.finished)) is not None:
            await node.call(self._operations(node).runs.retry_run(run.id))

    async def _retry_many(self, node: SimulatedNode, name: str) -> None:
        """Up to five runs that ended without success, each once more."""
        ids = self._some_ids(RETRIED)
        if ids:
            bulk = self._operations(node).bulk
            await node.call(bulk.retry(Selection(ids=ids), RETRIED, None, None, node.clock.now()))

    async def _cancel_many(self, node: SimulatedNode, name: str) -> None:
        ids = self._some_ids(CANCELLED)
        if ids:
            bulk = self._operations(node).bulk
            await node.call(bulk.cancel(Selection(ids=ids), CANCELLED, None, None, BY_REQUEST))

    def _some_ids(self, states: frozenset[State]) -> tuple[str, ...]:
        """Of the newest runs a few that are in these states."""
        fitting = [run.id for run in list(self._books.runs.values())[-50:] if run.state in states]
        return tuple(self._chance.sample(fitting, min(len(fitting), 5)))

    async def _ping(self, node: SimulatedNode, name: str) -> None:
        """A sign of work that is done elsewhere."""
        pings = self._operations(node).pings
        job = await node.call(self._operations(node).jobs.get_job(name))
        key = await node.call(pings.key_of(job))
        if key is None:
            return
        job = await node.call(pings.job_of(key))
        sign = self._chance.choice((Sign.SUCCESS, Sign.SUCCESS, Sign.START, Sign.FAIL, Sign.LOG))
        ping = Ping(sign, self._chance.choice((None, None, "one", "two")), body=self._chance.choice(("", "said")))
        seen: list[tuple[Run, Run]] = []
        token = SEEN.set(seen)
        answered: Run | None = None
        try:
            answered = await node.call(pings.heard(job, ping))
        finally:
            SEEN.reset(token)
            self._check_ping(ping, job, seen, answered)

    def _check_ping(self, ping: Ping, job: Job, seen: list[tuple[Run, Run]], answered: Run | None) -> None:
        """A ping ends one run of its job, that of the answer, or begins one; a note does neither. One that was asked to
        stop ends as cancelled."""
        said = f"ping {ping.sign} of job {job.name}"
        told = [new for old, new in seen if new.state is not old.state and (new.worker or "").startswith("ping")]
        if any(new.job_id != job.id for new in told) or len(told) > 1:
            self._books.trace.fail(f"{said} changed {[new.id for new in told]}")
        ends = {Sign.SUCCESS: State.COMPLETED, Sign.FAIL: State.FAILED, Sign.START: State.RUNNING}.get(ping.sign)
        stopped = {new.id for old, new in seen if (old.state, new.state) == (State.CANCELLING, State.CANCELLED)}
        if any(new.state is not ends and new.id not in stopped for new in told):
            self._books.trace.fail(f"{said} left run {told[0].id} {told[0].state}")
        must = ping.sign in (Sign.SUCCESS, Sign.FAIL)
        if answered is not None and (must or told) and [new.id for new in told] != [answered.id]:
            self._books.trace.fail(f"{said} was answered with run {answered.id}, and changed {told}")

    def _some_run(self, fits: Callable[[Run], bool]) -> Run | None:
        fitting = [run for run in list(self._books.runs.values())[-50:] if fits(run)]
        return self._chance.choice(fitting) if fitting else None


class People(RunPeople):
    """Those who define, change, pause, trigger and cancel."""

    def __init__(
        self,
        request: str,
        chance: Random,
        nodes: Callable[[], SimulatedNode | None],
        books: Books,
        on_bus: float = 0.0,
        is_crowded: bool = False,
    ) -> None:
        super().__init__(chance, books)
        self._nodes = nodes
        self._request = request
        self._on_bus = on_bus
        self._acts: tuple[Callable[[SimulatedNode, str], Any], ...] = (
            self._put, self._put, self._again, self._patch, self._pause, self._resume, self._resume, self._trigger,
            self._trigger, self._cancel, self._cancel, self._cancel, self._retry, self._backfill, self._burst,
            self._delete, self._delete_and_die, self._move, self._ping, self._ping, self._retry_many,
            self._cancel_many,
        )  # fmt: skip
        if SHARES["away"] or SHARES["hosts"]:
            self._acts = (self._put, self._trigger, self._trigger, self._cancel, self._retry)
        if SHARES["fair"]:
            self._acts = (self._burst,)
        self._crowding = (self._burst, self._trigger, self._cancel) if is_crowded else ()
        self._batch = BatchPeople(chance, books, nodes).batch
        gates = GatePeople(chance, books)
        self._calendar = gates.calendar
        self._gates = (
            gates.override, gates.override, gates.decide, gates.decide, gates.hold, gates.hold, gates.lift, gates.lift,
            gates.calendar,
        )  # fmt: skip

    async def define(self, count: int) -> None:
        """The channels that jobs tell, and the first jobs."""
        for channel in CHANNELS:
            for seconds in counted():
                await asyncio.sleep(seconds)
                if await self._add_channel(channel):
                    break
        if SHARES["gates"] and (node := self._nodes()) is not None:
            await self._try(self._calendar, node, "")
        if SHARES["fair"] and (node := self._nodes()) is not None:
            for handler in HANDLERS:
                await node.call(self._operations(node).queues.put(f"handler/{handler}", QueueSettings(WEIGHTS)))
        for name in NAMES[:count]:
            if (node := self._nodes()) is not None:
                await self._try(self._put, node, name)

    async def _add_channel(self, name: str) -> bool:
        if (node := self._nodes()) is None:
            return False
        with suppress(HorariumError):
            channel = WebhookChannel(url="https://example.org/", system=False)
            await node.call(self._operations(node).channels.put(name, channel))
            return True
        return False

    async def act(self) -> None:
        """Something, to some job."""
        node = self._nodes()
        if node is not None:
            acts = self._crowding if self._crowding and self._chance.random() < CROWDING else self._acts
            if SHARES["gates"] and self._chance.random() < SHARES["gates"]:
                acts = self._gates
            if SHARES["batches"] and self._chance.random() < SHARES["batches"]:
                acts = (self._batch,)
            act = self._chance.choice(acts)
            await self._try(self._trigger if is_race(self._chance) else act, node, self._chance.choice(NAMES))

    async def _try(self, act: Callable[[SimulatedNode, str], Any], node: SimulatedNode, name: str) -> None:
        self._books.trace.note(f"{node.name} {act.__name__} {name}")
        try:
            with acting(Origin(principal=PERSON, request_id=f"{self._request}-{name}")):
                await act(node, name)
        except HorariumError as error:
            self._books.trace.note(f"refused: {type(error).__name__}")

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
                {"target": a_target(self._chance, self._on_bus)},
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
        node.die_at(_deletes)
        try:
            await asyncio.sleep(self._chance.random() * 0.1)
            await node.call(self._operations(node).jobs.delete_job(name))
        finally:
            node.die_at(None)
            await asyncio.wait(triggers)

    async def _trigger_somewhere(self, name: str, within: float = 0.1) -> None:
        await asyncio.sleep(self._chance.random() * within)
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
        if is_race(self._chance):
            await self._race(name)
            return
        if (count := how_many_at_once(self._chance)) == 1:
            await self._trigger_once(node, name)
            return
        calls = (self._trigger_once(node, name) for _ in range(count))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _race(self, name: str) -> None:
        """Each of them is decided while the run of the one before is being claimed."""
        triggers: list[asyncio.Task[None]] = []
        for _ in range(self._chance.randrange(2, RACE_MAX)):
            triggers.append(asyncio.ensure_future(self._trigger_somewhere(name, 0.0)))
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.02, 0.3)) * self._chance.random())
        await asyncio.wait(triggers)

    async def _trigger_once(self, node: SimulatedNode, name: str) -> None:
        key = self._chance.choice((None, None, f"key-{self._chance.randrange(4)}"))
        run = await node.call(self._operations(node).jobs.trigger_job(name, b"{}", key))
        if run.id not in self._books.runs:
            self._books.trace.fail(f"trigger_job answered with run {run.id}, which was never made")

    async def _burst(self, node: SimulatedNode, name: str) -> None:
        """Many runs at once, that belong to no job."""
        now = node.clock.now()
        fair = a_key(self._chance) if SHARES["fair"] and self._chance.random() < SHARES["fair"] else None
        lease, queue = self._chance.choice((1, 2, 5)), f"handler/{self._chance.choice(HANDLERS)}"
        spread = SECOND * 2 if self._crowding else 1
        runs = [
            Run(
                id=uuid7(now, self._chance.randbytes(10)),
                queue=queue,
                fire_at=now,
                due_at=now + self._chance.randrange(spread),
                created_at=now,
                cause=Cause.ENQUEUED,
                lease_seconds=lease,
                fair=fair,
            )
            for _ in range(self._chance.randrange(5, BURST_MAX if fair is None else BURST))
        ]
        if fair is not None:
            runs = await node.call(self._operations(node).runs.lined_up(runs))
        await node.call(self._operations(node).runs.add_runs(runs))

    async def _backfill(self, node: SimulatedNode, name: str) -> None:
        end = to_datetime(node.clock.now())
        await node.call(self._operations(node).jobs.backfill_job(name, end - timedelta(seconds=30), end))


def _deletes(method: str, args: tuple[Any, ...], answer: Any) -> bool:
    """Whether this call of the store has just deleted a job."""
    return method == "commit_plans" and any(
        done and plan.job.deleted_at is not None for plan, done in zip(args[0], answer, strict=True)
    )
