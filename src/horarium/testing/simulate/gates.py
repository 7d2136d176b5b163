"""Those who say in the simulated world when not to run: fire times that are skipped and moved, decisions about runs
that wait for one, holds, calendars and limits of rates.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from random import Random

from horarium.clock import SECOND, to_datetime, to_instant
from horarium.errors import HorariumError
from horarium.model.calendars import Calendar
from horarium.model.holds import HeldMissed, HeldRunning, HoldRepeat, HoldScope
from horarium.rules.asking import Waiting
from horarium.testing.simulate.node import SimulatedNode
from horarium.testing.simulate.watch import Books
from horarium.wire.approvals import Decision
from horarium.wire.holds import HoldDefinition, HoldPatch

CALENDAR, HOLIDAY = "town", "2026-01-05"
AHEAD_MAX = 5
"""Fire times of a job from which one is chosen."""


class GatePeople:
    """Those who hold back, and let go on."""

    def __init__(self, chance: Random, books: Books) -> None:
        self._chance = chance
        self._books = books

    async def decide(self, node: SimulatedNode, name: str) -> None:
        """Two persons decide about one that waits, of runs and of missed fire times: one of them does."""
        approving = node.runtime.operations.approving
        waiting = (await node.call(approving.page(None, None, AHEAD_MAX))).items
        if waiting:
            one = self._chance.choice(waiting)
            both = await asyncio.gather(*(self._decide_one(node, one) for _ in range(2)))
            asked_again = one.missed and self._books.trace.clock_went_back  # about the same fire times
            if sum(both) > 1 and not asked_again:
                self._books.trace.fail(f"run {one.run.id} was decided twice")

    async def _decide_one(self, node: SimulatedNode, waiting: Waiting) -> bool:
        decisions: tuple[Decision, ...] = ("approve", "approve", "reject")
        decision = self._chance.choice(("none", "latest", "all") if waiting.missed else decisions)
        with suppress(HorariumError):
            await node.call(node.runtime.operations.approving.decide(waiting.run.id, decision))
            if waiting.missed:
                self._books.gates.asked.answered(waiting.run.id, decision)
            return True
        return False

    async def override(self, node: SimulatedNode, name: str) -> None:
        """A fire time of the next seconds is skipped or moved, or one that was goes back to its rule."""
        operations = node.runtime.operations
        job = await node.call(operations.jobs.get_job(name))
        gates = self._books.gates
        if job.overrides and self._chance.random() < 0.3:
            fire_at = self._chance.choice(job.overrides).fire_at
            gates.as_its_rule_has_it(job.id, fire_at)
            gates.lifted.add((job.id, fire_at))
            await node.call(operations.overriding.lift(name, to_datetime(fire_at)))
            return
        fires, _ = await node.call(operations.jobs.fires(name, AHEAD_MAX))
        if not fires:
            return
        fire_at, to = to_instant(self._chance.choice(fires)), None
        gates.as_its_rule_has_it(job.id, fire_at)
        if self._chance.random() < 0.5:
            await node.call(operations.overriding.skip(name, to_datetime(fire_at), "because"))
        else:
            to = max(node.clock.now(), fire_at) + round(self._chance.uniform(-5, 10) * SECOND)
            await node.call(operations.overriding.move(name, to_datetime(fire_at), to_datetime(to), "because"))
        gates.overridden(job.id, fire_at, to)

    async def hold(self, node: SimulatedNode, name: str) -> None:
        """Something is held, from now or soon on, for a while or until it is lifted."""
        chance, now = self._chance, to_datetime(node.clock.now())
        begins_at = now + timedelta(seconds=chance.choice((0, 0, 3)))
        until = begins_at + timedelta(seconds=chance.choice((1, 4, 10)))
        every = {"type": "interval", "every_seconds": 6, "anchor": "1970-01-01T00:00:00Z"}
        wanted = HoldDefinition(
            scope=self._scope(name),
            begins_at=chance.choice((None, begins_at)),
            until=chance.choice((None, until, until)),
            repeat=chance.choice((None, None, HoldRepeat(every, 2.0))),
            missed=chance.choice((HeldMissed.CATCH_UP, HeldMissed.SKIP)),
            running=chance.choice((HeldRunning.FINISH, HeldRunning.FINISH, HeldRunning.CANCEL)),
            reason="because",
        )
        await node.call(node.runtime.operations.holds.add(wanted))

    def _scope(self, name: str) -> HoldScope:
        kind = self._chance.randrange(5)
        if kind < 2:
            return HoldScope(job=name)
        if kind == 2:
            return HoldScope(labels={"a": str(self._chance.randrange(3))})
        return HoldScope(queue=self._chance.choice(("red", "handler/alpha"))) if kind == 3 else HoldScope(all=True)

    async def lift(self, node: SimulatedNode, name: str) -> None:
        """A hold ends before its time, or lasts longer."""
        holds = node.runtime.operations.holds
        found = (await node.call(holds.page(None, None, 20))).items
        if found and self._chance.random() < 0.7:
            await node.call(holds.lift(self._chance.choice(found).id))
        elif found:
            until = to_datetime(node.clock.now()) + timedelta(seconds=self._chance.uniform(0.5, 8))
            await node.call(holds.update(self._chance.choice(found).id, HoldPatch(until=until)))

    async def calendar(self, node: SimulatedNode, name: str) -> None:
        """The day of this world becomes a holiday, or a business day again."""
        holidays = self._chance.choice(((), (HOLIDAY,)))
        await node.call(node.runtime.operations.calendars.put(CALENDAR, Calendar(holidays=holidays)))


async def lift_all(node: SimulatedNode) -> None:
    """No hold is left."""
    holds = node.runtime.operations.holds
    for hold in (await node.call(holds.page(None, None, 500))).items:
        await node.call(holds.lift(hold.id))
