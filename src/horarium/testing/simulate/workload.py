"""The load of the simulated world: jobs, their handlers, requests of people and remote workers.

Everything is drawn from the seed. What the handlers do is drawn for each job by itself, so that it depends neither on
which node gets there first nor on the ids of runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from horarium.buses.memory import MemoryBroker
from horarium.clock import SECOND, Clock, Instant, to_datetime, to_instant, to_text
from horarium.delivery.context import RunContext
from horarium.delivery.handler import Defer, Discard, Retry
from horarium.errors import HorariumError
from horarium.model import Cancelled, Deferred, Failed, Outcome, Released, Run, Succeeded, fraction
from horarium.model.logs import LogLine
from horarium.operations.settling.settling import Settlement
from horarium.policies import Overlap
from horarium.testing.simulate.absent import Timetable
from horarium.testing.simulate.chances import Chances
from horarium.testing.simulate.follow_ups import ON
from horarium.testing.simulate.hosts import DEAD, WELL, Hosts
from horarium.testing.simulate.node import NODE, SimulatedNode
from horarium.testing.simulate.watch import Books
from horarium.wire.definitions import JobDefinition, read_definition

NAMES = tuple(f"job-{index}" for index in range(5))
HANDLERS = ("alpha", "beta")
QUICK_WORLDS, QUICK = 0.3, 0.97
"""In how many worlds most handlers return at once, so that runs are claimed ahead of free places, and how many do."""
BURST_MAX = 24
STORM_MAX = 12
"""Triggers of one job that come at once."""
RACE_MAX = 6
CROWDED_WORLDS, CROWDED_QUICK, CROWDED_SHORT = 0.4, 0.7, 0.97
"""In how many worlds more is claimed, most of the time, than there are places, while cancels, triggers and wake-ups
come in at every wait; and how many handlers there return at once, or within a second."""
QUEUES = ("pull/red", "pull/blue")
ELSEWHERE = 0.1
"""How many jobs are done elsewhere, and report by pings."""
ASKING = 0.3
"""How many jobs ask for a decision about each run, and about what they missed, where people say when not to run."""
RATED = 0.3
"""How many of these have a limit of their rate."""
RATES = {
    "r1": {"key": "r1", "max": 3, "per_seconds": 2},
    "r2": {"key": "r2", "max": 5, "per_seconds": 3, "burst": 3},
}
SHARES = {
    "from_end": 0.0,
    "buffer_max": 0.0,
    "says": 0.0,
    "storms": 0.0,
    "races": 0.0,
    "ahead": 0.0,
    "twice": 0.0,
    "gates": 0.0,
    "joins": 0.0,
    "batches": 0.0,
    "away": 0.0,
    "hosts": 0.0,
    "fair": 0.0,
    "scripted": 0.0,
}
"""How many of the jobs that could count from the end of their last run, or have a `buffer_max`; how many of the
attempts say something; how many triggers come as many at once, and how many jobs end the runs before; how often it is
triggers that people ask for, one after the other on several nodes, and how many handlers go on until they are told to
stop; how often, where something goes wrong, a node starts while the clock is ahead, or the clock steps twice within a
moment; how often it is when not to run that people say; how many jobs follow from runs of others; how often it
is batches that people work with; how many of the
jobs are done by workers who are away for minutes, and how many by hosts over HTTP; how many of the bursts of runs have
a fairness key, and are large; whether a script decides what happens besides. Raised in worlds of their own, so that the
worlds of all other seeds stay as they are."""


def a_trigger(chance: Random, now: Instant) -> dict[str, Any]:
    """A rule that fires within seconds."""
    if SHARES["joins"] and chance.random() < SHARES["joins"]:
        return a_join(chance)
    kind = chance.randrange(8)
    if kind == 2 and SHARES["gates"]:
        return {"type": "business_day", "calendar": "town", "trigger": {"type": "cron", "expression": "*/3 * * * * *"}}
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
    if kind == 3 or SHARES["races"]:
        return {"type": "cron", "expression": "0 * * * *", "timezone": "UTC"}
    interval: dict[str, Any] = {"type": "interval", "every_seconds": chance.choice((1, 2, 3, 5, 8, 1.5))}
    if kind < 6 and SHARES["from_end"] and chance.random() < SHARES["from_end"]:
        return {**interval, "from": "end"}
    return interval if kind < 6 else {**interval, "anchor": to_text(now - chance.randrange(100) * SECOND)}


def a_join(chance: Random) -> dict[str, Any]:
    """Follows from runs of some others; one that would be a circle is refused."""
    deadline = chance.choice(({}, {}, {"deadline_seconds": chance.choice((2, 8, 20))}))
    outcome = chance.choice(("completed", "finished"))
    window = {"seconds": chance.choice((4, 10, 30))}
    jobs = chance.sample(NAMES[:4], chance.randint(1, 2))
    return {"type": "after", "jobs": jobs, "outcome": outcome, "within": window, **deadline}


def how_many_at_once(chance: Random) -> int:
    """Triggers of one job that come at the same time."""
    return chance.randrange(2, STORM_MAX) if SHARES["storms"] and chance.random() < SHARES["storms"] else 1


def has_races() -> bool:
    """Whether nodes are to meet each other, and claims, in what they write."""
    return SHARES["races"] > 0


def has_rest() -> bool:
    """True if calls and clocks are free of faults, whose effects would hide the rule under test."""
    return any(SHARES[share] for share in ("away", "hosts", "fair", "scripted"))


def is_race(chance: Random) -> bool:
    """Whether a job is triggered again and again, on several nodes."""
    return SHARES["races"] > 0 and chance.random() < SHARES["races"]


def a_definition(chance: Random, name: str, now: Instant, on_bus: float = 0.0) -> JobDefinition:
    """A job with policies of every kind."""
    heartbeat = chance.choice((1, 2, 5))
    window = chance.choice(({}, {}, {"window_seconds": 5}))
    fields: dict[str, Any] = {
        "name": name,
        "trigger": a_trigger(chance, now),
        "target": a_target(chance, on_bus, ELSEWHERE),
        "catch_up": {"policy": chance.choice(("none", "latest", "all")), **window},
        "overlap": chance.choice([overlap.value for overlap in Overlap]),
        "retry": {"attempts_max": chance.randint(1, 4), "backoff_seconds": chance.choice((0, 0.5, 2))},
        "timeouts": {"heartbeat_seconds": heartbeat, **_limits(chance)},
        "jitter_seconds": chance.choice((0, 0, 0, 1.5)),
        "priority": chance.choice((0, 0, 5)),
        "retention": {"finished_seconds": chance.choice((None, 3_600, 5))},
        "on": ON.get(name, {}),
    }
    if fields["target"]["type"] == "external":
        fields["timeouts"] |= {"start_seconds": chance.choice((2, 6)), "execution_seconds": chance.choice((1, 3))}
    elif SHARES["gates"] and chance.random() < ASKING:
        fields["approval"] = {"within_seconds": chance.choice((2, 8)), "then": chance.choice(("skip", "run"))}
    if SHARES["gates"] and fraction(str(fields), "asks") < ASKING and fields["trigger"].get("from") != "end":
        said = {"within_seconds": chance.choice((2, 8)), "then": chance.choice(("none", "latest", "all"))}
        fields["catch_up"] |= {"policy": "ask", **said}
    if SHARES["gates"]:
        fields["labels"] = {"a": str(chance.randrange(3))}
        if chance.random() < RATED:
            fields["rate"] = [RATES[key] for key in chance.sample(sorted(RATES), chance.randint(1, 2))]
    if chance.random() < 0.3:
        fields["concurrency"] = {"key": chance.choice(("k1", "k2")), "max": chance.randint(1, 2)}
    if chance.random() < 0.2:
        fields["fires_max"] = chance.randint(1, 6)
    ends_others = max(SHARES["storms"], SHARES["races"])
    if ends_others and chance.random() < ends_others:
        fields["overlap"] = chance.choice(("cancel_other", "terminate_other"))
    if SHARES["buffer_max"] and chance.random() < SHARES["buffer_max"]:
        fields["buffer_max"] = chance.randint(1, 3)
    if chance.random() < 0.15:
        fields["ends_at"] = to_datetime(now + chance.randrange(40, 60) * SECOND)
    if chance.random() < 0.15:
        fields["starts_at"] = to_datetime(now + chance.randrange(1, 10) * SECOND)
    if SHARES["away"] and chance.random() < SHARES["away"]:
        fields |= _for_workers(chance)
    if SHARES["hosts"] and chance.random() < SHARES["hosts"]:
        fields |= _over_http(chance)
    return read_definition(fields)


def _for_workers(chance: Random) -> dict[str, Any]:
    """A job of a remote worker, who may be away for minutes."""
    return {
        "trigger": {"type": "interval", "every_seconds": chance.choice((7, 10, 15, 20, 40))},
        "target": {"type": "queue", "queue": chance.choice(QUEUES).removeprefix("pull/")},
        "catch_up": {
            "policy": chance.choice(("none", "latest", "latest", "all")),
            "window_seconds": chance.choice((None, None, 50)),
        },
        "overlap": chance.choice(("allow", "allow", "allow", "queue")),
        "timeouts": {"heartbeat_seconds": 5},
        "ends_at": None,
        "fires_max": None,
    }


def _over_http(chance: Random) -> dict[str, Any]:
    """A job of one of the two hosts."""
    return {
        "trigger": {"type": "interval", "every_seconds": chance.choice((1, 2, 3))},
        "target": {"type": "http", "url": f"http://{chance.choice((DEAD, DEAD, WELL))}/"},
        "overlap": chance.choice(("allow", "allow", "allow", "queue")),
        "timeouts": {"heartbeat_seconds": 5},
        "approval": None,
    }


def a_target(chance: Random, on_bus: float = 0.0, elsewhere: float = 0.0) -> dict[str, Any]:
    """Where the work is done."""
    if on_bus and chance.random() < on_bus:
        return {"type": "bus"}
    if elsewhere and chance.random() < elsewhere:
        return {"type": "external"}
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


def is_crowded(seed: int) -> bool:
    """Whether the world of this seed is a crowded one."""
    return fraction(seed, "crowded") < CROWDED_WORLDS and not has_rest()


class Behaviour:
    """What the work is like. `calm` ends runs that would hang for ever."""

    def __init__(self, seed: int, chances: Chances, books: Books) -> None:
        self._seed = seed
        self._chances = chances
        self._books = books
        self._quick = fraction(seed, "quick") < QUICK_WORLDS
        self.crowded = is_crowded(seed)
        self.calm: asyncio.Event = asyncio.Event()
        self.broker = MemoryBroker()
        self.said = books.said
        self.batches = books.batches
        self.absences = books.jobs.absences
        self.hosts = books.jobs.hosts = Hosts(books.trace, chances, books.runs)
        self.timetable = Timetable(chances, books.trace)

    def handler(self, clock: Clock) -> Callable[[RunContext], Any]:
        """The handler of one node."""

        async def perform(run: RunContext) -> Any:
            self._books.begun(run.id, run.token, run.attempt, clock.now(), to_instant(run.due_at))
            try:
                return await self._perform(run, clock)
            finally:
                self._books.overlaps.ends(run.id, run.token)

        return perform

    async def _perform(self, run: RunContext, clock: Clock) -> Any:
        if not self.speaks(run.id, run.token):
            return await self._act(run, clock)
        self._speak(run)
        try:
            return await self._act(run, clock)
        finally:
            self._speak(run)

    def speaks(self, run_id: str, token: int) -> bool:
        """Whether this attempt says anything."""
        return SHARES["says"] > 0 and fraction(self._seed, run_id, token, "says") < SHARES["says"]

    def _speak(self, run: RunContext) -> None:
        for line in self.said.next_lines(run._run, NODE.get()):
            run.log(line)

    async def _act(self, run: RunContext, clock: Clock) -> Any:
        chance = self._chances.of("work", run.job or run._run.queue)
        dice, races = chance.random(), chance.random()
        if races < SHARES["races"]:
            await self._stop_when_asked(run)
        if self.crowded and not self.calm.is_set() and dice < CROWDED_SHORT:
            await asyncio.sleep(0.0 if dice < CROWDED_QUICK else (dice - CROWDED_QUICK) * 3)
            return {"token": run.token}
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
            await self._stop_when_asked(run)
            raise RuntimeError("stopped as asked")
        await self.calm.wait()
        return None

    async def _stop_when_asked(self, run: RunContext) -> None:
        asked = asyncio.ensure_future(run.cancelled.wait())
        calm = asyncio.ensure_future(self.calm.wait())
        try:
            await asyncio.wait([asked, calm], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            calm.cancel()

    def handed_out(self, run: Run) -> None:
        """A remote worker was given this run."""
        self._books.answers.handed_out(run.id, run.token)
        self._books.gates.begins(run)
        self.absences.begins(run)

    def outcome(self, run: Run, now: Instant) -> Outcome | None:
        """What a remote worker reports; None: nothing, ever."""
        dice = self._chances.of("remote work", run.job or run.queue).random()
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
        queues: tuple[str, ...] = QUEUES if self._chance.random() < 0.5 else (self._chance.choice(QUEUES),)
        if SHARES["away"] and not self._behaviour.calm.is_set():
            queues = tuple(queue for queue in queues if self._behaviour.timetable.serves(queue))
            if not queues:
                return
        self._behaviour.absences.asked(queues)
        poll = node.call(node.runtime.claims.claim(queues, self._chance.randint(1, 3), self._name, 2.0))
        if self._chance.random() < 0.1:
            poll = asyncio.wait_for(poll, self._chance.random() * 2)
        try:
            claimed = await poll
        except TimeoutError:
            return
        self._behaviour.absences.answered(queues, claimed.runs)
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
        if self._behaviour.speaks(run.id, run.token):
            said, now = self._behaviour.said, node.clock.now()
            lines = [LogLine(now, "log", text) for text in said.next_lines(run)]
            await node.call(operations.logs.report(run.id, run.token, lines))
            said.is_sure(run)
        outcome = self._behaviour.outcome(run, node.clock.now())
        if outcome is not None:
            twice = 1 if calm or self._chance.random() < 0.9 else 2
            await node.call(operations.settling.settle([Settlement(run.id, run.token, outcome)] * twice))
