"""A node's dispatcher, keeper and collector, and work for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from horarium.model import Outcome, Run, RunChange, State, Succeeded
from horarium.ports import Assignment, Control, Delivery
from horarium.services.leases.leases import Leases, Own
from horarium.services.loop.service import Wake
from horarium.services.performing.dispatcher import Dispatcher
from horarium.services.performing.keeper import Keeper
from horarium.services.performing.performing import Performing
from tests.services.conftest import Setting, a_collector
from tests.waiting import until

Perform = Callable[[Assignment, Control], Awaitable[Outcome | None]]


class Work:
    """A Target that does as it is told, and remembers what it was given."""

    def __init__(self, perform: Perform | None = None) -> None:
        self.begun: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()
        self._perform = perform

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        self.begun.append((assignment.run.id, assignment.run.token))
        if self._perform is not None:
            return await self._perform(assignment, control)
        await self.go_on.wait()
        return Succeeded()

    async def close(self) -> None:
        """Nothing to close."""


class Node:
    """A dispatcher with its keeper and collector."""

    def __init__(self, setting: Setting, work: Delivery, **options: Any) -> None:
        self.setting = setting
        self.collector = a_collector(setting)
        self.leases = Leases(setting.store, setting.clock)
        leased = Wake()
        places = options.pop("places", 100)
        self.performing = Performing(
            setting.clock, self.leases, self.collector, {"pull/q": work}, leased,
            places=places, holding=options.pop("holding", None),
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            "dispatcher", setting.operations.claiming, setting.clock, self.leases, setting.telemetry,
            self.performing, ("pull/q",), "w", **options,
        )  # fmt: skip
        self.keeper = Keeper((self.performing,), self.leases, leased, setting.clock)

    def own(self) -> Own:
        """What it holds."""
        return Own(
            "w",
            self.collector.claims(),
            frozenset(attempt.claim for attempt in self.performing.lively()),
            frozenset(self.performing.waiting.claims()),
            self.dispatcher.claiming_since,
            frozenset(self.setting.operations.settling.astray),
            frozenset(self.leases.timed_out),
        )

    async def claim(self) -> int | None:
        return await self.dispatcher.step(self.setting.now)

    async def settle(self) -> None:
        await until(lambda: self.collector.waiting > 0)
        await self.collector.step(self.setting.now)


def answer(outcome: Outcome | None) -> Work:
    async def perform(assignment: Assignment, control: Control) -> Outcome | None:
        return outcome

    return Work(perform)


def taken_away(run: Run) -> RunChange:
    """Somebody else ended the lease, and the run waits again."""
    waiting = replace(run, state=State.PENDING, lease_expires_at=None, started_at=None)
    return RunChange(waiting, run.token, run.state)
