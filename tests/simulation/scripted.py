"""Days in a simulated world on which each rule of when not to run is used, at moments that a script decides: the seed
fills in the nodes, their other load and who strikes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.clock import SECOND, to_datetime, to_instant
from horarium.errors import HorariumError, StoreUnavailable
from horarium.model import Job
from horarium.model.holds import HoldScope
from horarium.testing.simulate import World
from horarium.testing.simulate.node import SimulatedNode
from horarium.testing.simulate.people import PERSON
from horarium.wire.approvals import Decision
from horarium.wire.definitions import read_definition
from horarium.wire.holds import HoldDefinition

T = TypeVar("T")
NEVER = {"type": "cron", "expression": "0 0 1 1 *", "timezone": "UTC"}
AWAY_SECONDS = 12
LONG = 1_000
"""Seconds for which what is asked or held may wait: longer than any world."""


async def a_day(world: World) -> None:
    """Rates, skipped fire times, decisions about runs, and a hold."""
    await asyncio.gather(*(part(world) for part in (a_rate, skipped_fires, decisions, a_hold)))


async def sure(world: World, ask: Callable[[SimulatedNode], Coroutine[Any, Any, T]]) -> T:
    """What some node answers in the end."""
    chance = world.chances.of("script")
    while True:
        if (node := world.cluster.some_node(chance)) is not None:
            with suppress(StoreUnavailable), acting(Origin(principal=PERSON, request_id="script")):
                return await node.call(ask(node))
        if not world.cluster.nodes:
            await world.cluster.start()
        await world.time.passes(0.1)


async def a_job(world: World, name: str, trigger: dict[str, Any], **fields: Any) -> Job:
    """Of our own handlers, where nobody else changes it; it fires for three quarters of a minute."""
    definition = read_definition(
        {
            "name": name,
            "trigger": trigger,
            "target": {"type": "handler", "name": "alpha"},
            "overlap": "allow",
            "ends_at": None if trigger is NEVER else to_datetime(world.time.wall + 45 * SECOND),
            **fields,
        }
    )
    job, _ = await sure(world, lambda node: node.runtime.operations.jobs.put_job(definition))
    return job


def every(seconds: int) -> dict[str, Any]:
    return {"type": "interval", "every_seconds": seconds}


async def triggered(world: World, name: str, times: int) -> None:
    """So often at once."""
    await asyncio.gather(
        *(sure(world, lambda node: node.runtime.operations.jobs.trigger_job(name, b"{}")) for _ in range(times))
    )


async def a_rate(world: World) -> None:
    """Four runs at once, where one may begin within two seconds."""
    await a_job(world, "paced", NEVER, rate=[{"key": "paced", "max": 1, "per_seconds": 2}])
    for _ in range(3):
        await triggered(world, "paced", 4)
        await world.time.passes(5)


async def skipped_fires(world: World) -> None:
    """Every other fire time is skipped."""
    gates = world.books.gates
    job = await a_job(world, "skipping", every(2))
    for _ in range(8):
        fires, _ = await sure(world, lambda node: node.runtime.operations.jobs.fires("skipping", 2))
        for fire in fires[1:]:
            gates.as_its_rule_has_it(job.id, to_instant(fire))
            skip = partial(_skip, fire=fire)
            await sure(world, skip)
            gates.overridden(job.id, to_instant(fire), None)
        await world.time.passes(4)


def _skip(node: SimulatedNode, fire: Any) -> Coroutine[Any, Any, Any]:
    return node.runtime.operations.overriding.skip("skipping", fire, "because")


async def decisions(world: World) -> None:
    """Two persons decide at once about each run that waits."""
    approval = {"within_seconds": 40, "then": "skip"}  # others may ask for a run again, and nobody decides about it
    await a_job(world, "deciding", NEVER, approval=approval)
    for _ in range(3):
        await triggered(world, "deciding", 2)
        await world.time.passes(2)
        page = await sure(world, lambda node: node.runtime.operations.approving.page(None, None, 50))
        for waiting in (each for each in page.items if each.run.job == "deciding"):
            both = await asyncio.gather(*(_decided(world, waiting.run.id, said) for said in ("approve", "reject")))
            if sum(both) > 1:
                world.trace.fail(f"run {waiting.run.id} was decided twice")


async def _decided(world: World, id: str, decision: Decision) -> bool:
    with suppress(HorariumError):
        await sure(world, partial(_decide, id=id, decision=decision))
        return True
    return False


async def a_hold(world: World) -> None:
    """Of eight runs in a line most are held for twelve seconds, until that is lifted long before its end."""
    limits = {"timeouts": {"start_seconds": 6}, "rate": [{"key": "held", "max": 1, "per_seconds": 2}]}
    await a_job(world, "held", NEVER, **limits)
    await world.time.passes(3)
    await triggered(world, "held", 8)
    wanted = HoldDefinition(
        scope=HoldScope(job="held"), until=to_datetime(world.time.wall) + timedelta(seconds=LONG), reason="because"
    )
    hold = await sure(world, lambda node: node.runtime.operations.holds.add(wanted))
    await world.time.passes(12)
    await sure(world, lambda node: node.runtime.operations.holds.lift(hold.id))


async def a_day_of_absences(world: World) -> None:
    """Twice all nodes are away. Then a person decides otherwise than the jobs would."""
    ask = {"policy": "ask", "within_seconds": LONG, "then": "latest"}
    answers: dict[str, Decision] = {"asks-none": "none", "asks-all": "all"}
    for name in answers:
        await a_job(world, name, every(2), catch_up=ask)
    for stretches in (1, 2):
        await world.time.passes(4)
        await _away(world)
        for name in answers:
            await _asked(world, name, stretches)
    for name, decision in answers.items():
        missed = (await _asked(world, name, 2)).missed
        if missed is not None:
            await sure(world, partial(_decide, id=missed.id, decision=decision))
            world.books.gates.asked.answered(missed.id, decision)


def _decide(node: SimulatedNode, id: str, decision: Decision) -> Coroutine[Any, Any, Any]:
    return node.runtime.operations.approving.decide(id, decision)


async def _asked(world: World, name: str, stretches: int) -> Job:
    """The job, once it asks about so many, or does not for ten seconds."""
    for _ in range(20):
        job = await sure(world, lambda node: node.runtime.operations.jobs.get_job(name))
        if job.missed is not None and len(job.missed.stretches) >= stretches:
            break
        await world.time.passes(0.5)
    return job


async def _away(world: World) -> None:
    """No node lives, whoever starts one."""
    cluster = world.cluster
    for _ in range(AWAY_SECONDS * 10):
        for name in sorted(cluster.nodes):
            cluster.kill(name)
        await world.time.passes(0.1)
    await cluster.start()
