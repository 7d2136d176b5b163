"""Explanations of jobs that count from the end of their last run, beside an oracle that only adds up delays."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from horarium.clock import HOUR, MINUTE, SECOND, Instant, to_text
from horarium.model import Cause, Disposition, Job, Run, State
from horarium.model import run_id as run_id_of
from horarium.operations.looking.explaining import Explaining
from horarium.operations.settling.holding import Holding
from horarium.operations.writing.context import Context
from horarium.rules.explaining import Explanation
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_job, a_run

RUNS_MAX = 12


@dataclass
class Past:
    """What a job did, written down as it went: fire times, and when each run ended (None: the last one goes on)."""

    delay: Instant
    ends: dict[Instant, Instant | None] = field(default_factory=dict)
    by_hand: list[Instant] = field(default_factory=list)
    now: Instant = NOW
    ends_at: Instant | None = None
    paused: bool = False
    fires_max: int | None = None

    @property
    def next_fire(self) -> Instant | None:
        last = max(self.ends, default=None)
        ended = NOW if last is None else self.ends[last]
        if ended is None or (self.ends_at is not None and ended + self.delay >= self.ends_at):
            return None
        return ended + self.delay

    def expected(self, at: Instant) -> tuple[bool, Disposition | None]:
        if at in self.ends:
            return True, Disposition.RAN if self.ends[at] is not None else None
        if at in self.by_hand:
            return True, Disposition.RAN
        if self.fires_max is not None and len(self.ends) >= self.fires_max and at > max(self.ends, default=NOW):
            outside = self.ends_at is not None and at >= self.ends_at
            return False, None if outside else Disposition.LIMIT_REACHED
        if at != self.next_fire:
            return False, None
        if self.paused:
            return False, Disposition.SKIPPED_PAUSED
        return True, None

    def around(self, at: Instant) -> tuple[Instant | None, Instant | None]:
        known = [*self.ends, *([] if self.next_fire is None else [self.next_fire])]
        before = [fire for fire in self.ends if fire < at]
        return max(before, default=None), min((fire for fire in known if fire > at), default=None)


def any_past(random: Random) -> Past:
    past = Past(delay=random.choice((SECOND, 10 * SECOND, 5 * MINUTE, 3 * HOUR)))
    fire = NOW + past.delay
    for _ in range(random.randint(0, RUNS_MAX)):
        past.ends[fire] = end = fire + random.choice((1, SECOND, past.delay, 7 * past.delay + 3))
        fire = end + past.delay
        if random.random() < 0.2:
            past.by_hand.append(end - random.randint(0, 1))
    last = max(past.ends, default=None)
    past.now = (NOW if last is None else past.ends[last] or NOW) + random.randrange(past.delay)
    if last is not None and random.random() < 0.3:
        past.ends[last] = None
    past.paused = random.random() < 0.15
    if random.random() < 0.2:
        past.fires_max = max(len(past.ends), 1)
    if random.random() < 0.2:
        past.ends_at = past.now + random.randint(1, 2 * past.delay)
    return past


def job_of(past: Past) -> Job:
    last = max(past.ends, default=NOW)
    return a_job(
        trigger={"type": "interval", "every_seconds": past.delay / SECOND, "from": "end"},
        anchor_at=last, planned_until=last, fires_count=len(past.ends), fires_max=past.fires_max,
        enabled=not past.paused, paused_at=past.now if past.paused else None, ends_at=past.ends_at,
    )  # fmt: skip


def runs_of(past: Past, job: Job) -> list[Run]:
    def made(fire: Instant, end: Instant | None, cause: Cause) -> Run:
        run = a_run(1, job_id=job.id, job=job.name, fire_at=fire, due_at=fire, cause=cause, attempt=1)
        run = replace(run, id=run_id_of(job.id, fire), started_at=fire)
        if end is None:
            return replace(run, state=State.RUNNING, token=1, worker="w", lease_expires_at=past.now + HOUR)
        return replace(run, state=State.COMPLETED, finished_at=end, disposition=Disposition.RAN)

    planned = [made(fire, end, Cause.SCHEDULE) for fire, end in past.ends.items()]
    return planned + [made(fire, fire + 1, Cause.MANUAL) for fire in past.by_hand if fire not in past.ends]


async def explaining(past: Past) -> Explaining:
    job, store = job_of(past), MemoryStore()
    await store.open()
    await store.add_runs(runs_of(past, job))

    class Jobs:
        async def get_job(self, name: str) -> Job:
            return job

    context = Context(store, ManualClock(past.now), LocalSignal(), os.urandom)
    return Explaining(context, cast(Any, Jobs()), cast(Any, None), Holding(context))


def instants(random: Random, past: Past, count: int) -> list[Instant]:
    """Fire times, ends, what lies next to them, and what is to come."""
    known = [*past.ends, *(end for end in past.ends.values() if end), *past.by_hand, past.now, past.next_fire or NOW]
    return [random.choice(known) + random.choice((0, 0, 0, -1, 1, past.delay)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
async def test_fifty_instants_are_explained_as_the_oracle_knows_them(seed: int) -> None:
    random = Random(seed)
    for _ in range(5):
        past = any_past(random)
        asked = await explaining(past)
        for at in instants(random, past, 10):
            told = await asked.at("job", at)
            assert (told.fires, told.disposition) == past.expected(at), (past, at, told)
            assert (told.previous, told.next) == past.around(at), (past, at, told)


@pytest.mark.parametrize("seed", range(10))
async def test_a_span_has_each_fire_time_once(seed: int) -> None:
    random = Random(seed)
    past = any_past(random)
    past.by_hand = []
    asked = await explaining(past)
    limit, found, after = random.randint(1, 4), list[Explanation](), None
    while True:
        page = await asked.between("job", NOW, past.now + 3 * past.delay, limit, after)
        found += page.items
        assert len(page.items) <= limit
        after = page.next_after
        if after is None:
            break
    coming = [] if past.next_fire is None else [past.next_fire]
    assert [told.at for told in found] == [*past.ends, *coming]


async def said(past: Past, at: Instant) -> str:
    return (await (await explaining(past)).at("job", at)).reason


async def test_it_says_from_which_end_it_counts() -> None:
    fire, end = NOW + MINUTE, NOW + 3 * MINUTE
    past = Past(MINUTE, {fire: end}, now=end + SECOND)
    assert await said(past, end + MINUTE) == "it is 0:01:00 after the end of the last run: it will run"
    assert await said(past, fire + 1) == (
        f"the run of {to_text(fire)} was under way, and the next comes 0:01:00 after its end; "
        f"the next is at {to_text(end + MINUTE)}"
    )
    assert await said(past, end + HOUR) == (
        f"not known yet: it runs next at {to_text(end + MINUTE)}, and then 0:01:00 after that ends"
    )
    past.ends[fire] = None
    assert await said(past, end + HOUR) == (
        f"the run of {to_text(fire)} goes on, and the next comes 0:01:00 after its end"
    )
    assert await said(Past(MINUTE), fire) == "it is the first fire time: it will run"
    past = Past(MINUTE, {fire: end, end + MINUTE: None}, now=end + HOUR)
    assert await said(past, end + 1) == (
        f"the run of {to_text(fire)} ended at {to_text(end)}, and the next comes 0:01:00 after that; "
        f"the next came at {to_text(end + MINUTE)}"
    )


async def test_one_that_is_paused_says_so_at_any_instant_to_come() -> None:
    fire, end = NOW + MINUTE, NOW + 3 * MINUTE
    past = Past(MINUTE, {fire: end}, now=end + SECOND, paused=True)
    assert (await said(past, end + HOUR)).startswith("not known yet: the job is paused")
    assert "; the next is at " + to_text(end + MINUTE) + ", but the job is paused" in await said(past, end + SECOND)
