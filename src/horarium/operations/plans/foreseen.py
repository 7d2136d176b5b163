"""Warnings of a plan: what is valid, and perhaps not meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from horarium.clock import Instant, to_text
from horarium.errors import TooExpensive
from horarium.model import Job
from horarium.model.calendars import Calendar
from horarium.model.targets import PLAIN_QUEUES
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import Slices
from horarium.operations.bounds.reaching import followed
from horarium.operations.bounds.telling import channel_warnings
from horarium.operations.calendars import PREFIX, decode_calendar
from horarium.ports import BATCH_MAX, RunFilter, Store
from horarium.rules.calendars import calendars_in, ends_soon
from horarium.rules.foreseeing import warnings_of
from horarium.triggers.budget import LIST_STEPS

WARNINGS_MAX = 200
HERD = 40
"""Starts in one minute that are worth a warning."""
QUEUES_LOOKED_AT = 20


class Foreseen(Struct, frozen=True):
    """One warning. `job`: about which; None: about all of them together."""

    job: str | None
    text: str


Pairs = Sequence[tuple[Job | None, Job | None]]


async def foreseen(
    store: Store,
    pairs: Pairs,
    calendars: Mapping[str, Calendar],
    channels: Collection[str],
    peak: tuple[Instant, int] | None,
    now: Instant,
    owner: Mapping[str, str],
) -> list[Foreseen]:
    """Of the jobs that are made or changed. `calendars` and `channels`: those that the same plan brings. `peak`: the
    busiest minute, where it gets busier. `owner`: the labels by which it prunes."""
    jobs = [after for _, after in pairs if after is not None]
    found = [*_of_overrides(pairs), *_of_labels(jobs, owner), *_of_names(pairs)]
    found += await _of_rules(jobs, now)
    found += await _of_channels(store, jobs, channels)
    found += await _of_followed(store, pairs)
    found += await _of_calendars(store, jobs, calendars, now)
    found += await _of_queues(store, jobs)
    if peak is not None and peak[1] >= HERD:
        text = f"{peak[1]:,} runs start in the minute of {to_text(peak[0])}; jitter_seconds spreads them, and so does H"
        found.append(Foreseen(None, text))
    return found[:WARNINGS_MAX]


def _of_overrides(pairs: Pairs) -> Iterator[Foreseen]:
    for before, after in pairs:
        if before is None or after is None:
            continue
        for each in before.overrides:
            if not each.done and each not in after.overrides:
                by_hand = "skipped by hand" if each.to is None else f"moved by hand to {to_text(each.to)}"
                text = f"its fire time of {to_text(each.fire_at)}, {by_hand}, is none of the new rule: that is lost"
                yield Foreseen(after.name, text)


def _of_labels(jobs: Sequence[Job], owner: Mapping[str, str]) -> Iterator[Foreseen]:
    for job in jobs:
        for name, text in owner.items():
            if job.labels.get(name) != text:
                label = f"{name}={text}"
                yield Foreseen(job.name, f"it has no label {label}, so --prune {label} will never delete it")


def _of_names(pairs: Pairs) -> Iterator[Foreseen]:
    """Jobs under another name."""
    gone = [job for job, after in pairs if job is not None and after is None]
    known = {msgspec.json.encode((job.trigger, job.target)): job.name for job in gone}
    for before, after in pairs if known else ():
        if before is None and after is not None:
            name = known.get(msgspec.json.encode((after.trigger, after.target)))
            if name is not None:
                text = (
                    f"it has the trigger and the target of {name}, which is deleted: it begins without the runs of that"
                )
                yield Foreseen(after.name, text)


async def _of_rules(jobs: Sequence[Job], now: Instant) -> list[Foreseen]:
    found: list[Foreseen] = []
    slices = Slices()
    for job in jobs:
        if len(found) >= WARNINGS_MAX:
            break
        await slices.give_way()
        try:
            texts = await evaluate(lambda job=job: list(warnings_of(job, now)), LIST_STEPS)  # type: ignore[misc]
        except TooExpensive:
            texts = ["its rule takes too long to be looked at"]
        found += (Foreseen(job.name, text) for text in texts)
    return found


async def _of_channels(store: Store, jobs: Sequence[Job], known: Collection[str]) -> list[Foreseen]:
    telling = [job for job in jobs if job.on]
    texts = await channel_warnings(store, [job.on for job in telling], known) if telling else []
    return [Foreseen(job.name, text) for job, text in zip(telling, texts, strict=True) if text]


async def _of_followed(store: Store, pairs: Pairs) -> list[Foreseen]:
    """Jobs that others set off, or follow from, and that are neither stored nor in the plan."""
    wanted = {after.name: followed(after) for _, after in pairs if after is not None}
    gone = {before.name for before, after in pairs if before is not None and after is None}
    names = sorted(frozenset[str]().union(*wanted.values()) - wanted.keys())
    for start in range(0, len(names), BATCH_MAX):
        some = names[start : start + BATCH_MAX]
        stored = await store.get_jobs(some)
        gone |= {name for name, job in zip(some, stored, strict=True) if job is None}
    missing = {name: sorted(others & gone) for name, others in wanted.items()}
    return [
        Foreseen(name, f"there is no job {', '.join(map(repr, others))}; define it, or correct its name")
        for name, others in missing.items()
        if others
    ]


async def _of_calendars(
    store: Store, jobs: Sequence[Job], known: Mapping[str, Calendar], now: Instant
) -> list[Foreseen]:
    users: dict[str, str] = {}
    for job in jobs:
        for name in calendars_in(job.trigger):
            users.setdefault(name, job.name)
    names = sorted(users.keys() - known.keys())
    records = await store.get_records([PREFIX + name for name in names]) if names else []
    stored = {
        name: decode_calendar(record.body) for name, record in zip(names, records, strict=True) if record is not None
    }
    found: list[Foreseen] = []
    for name, calendar in sorted({**stored, **known}.items()):
        if name in users and ends_soon(calendar.ends_on, now):
            text = f"the calendar {name} ends on {calendar.ends_on}; beyond that day only its weekend counts"
            found.append(Foreseen(users[name], text))
    return found


async def _of_queues(store: Store, jobs: Sequence[Job]) -> list[Foreseen]:
    """Queues from which no worker has taken a run so far, as far as runs are kept."""
    firsts: dict[str, str] = {}
    for job in jobs:
        if job.queue not in PLAIN_QUEUES:
            firsts.setdefault(job.queue, job.name)
    found: list[Foreseen] = []
    for queue, name in sorted(firsts.items())[:QUEUES_LOOKED_AT]:
        page = await store.list_runs(RunFilter(queue=queue), None, QUEUES_LOOKED_AT)
        if not any(run.worker for run in page.items):
            text = f"no worker has taken a run of the queue {queue} yet; start one, or correct the name"
            found.append(Foreseen(name, text))
    return found
