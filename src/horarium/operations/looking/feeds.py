"""Feeds: addresses for calendar programs. The key in an address is shown once; only its digest is kept."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from heapq import nsmallest

import msgspec
from msgspec.structs import replace

from horarium.access.acting import reading, who_acts
from horarium.access.keys import keys_named
from horarium.access.roles import RESERVED, Principal, principal
from horarium.clock import DAY, Instant
from horarium.errors import AlreadyExists, Forbidden, InvalidRequest, NotFound, TooExpensive
from horarium.model import Job, run_id
from horarium.model.feeds import FEED, KEY_LABEL, Feed
from horarium.model.holds import Hold
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.evaluating import evaluate, in_thread
from horarium.operations.bounds.listing import Slices
from horarium.operations.bounds.reaching import may_reach_job
from horarium.operations.settling.holding import PLANNED_SECONDS, Holding
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.ports import PAGE_MAX, JobFilter, Page
from horarium.rules.compiled import words_of
from horarium.rules.feeding import Event, event_ahead, event_of, feed_text
from horarium.rules.holds import covers_job, hold_at
from horarium.rules.overridden import with_moves
from horarium.rules.planning import job_fires
from horarium.triggers.budget import LIST_STEPS

KEY_BYTES = 32
AHEAD = 60 * DAY
BEHIND = 30 * DAY
EVENTS_MAX = 5_000
"""Events of one feed."""
JOBS_MAX = 1_000
FIRES_EACH = 100
"""Fire times of one job: of one that fires more often, the next ones."""
RUNS_EACH = 20
TAG_DIGITS = 32

Listed = tuple[Feed, bool]
"""A feed, and whether it has ended with the key that made it."""

_decode = msgspec.json.Decoder(Feed).decode


class Feeds:
    """Feeds of one namespace."""

    def __init__(self, context: Context, holding: Holding) -> None:
        self._holding = holding
        self._store, self._clock, _, self._entropy = context
        self._kept = Kept(context, "feed", FEED, _decode)

    async def create(self, name: str, labels: Mapping[str, str], jobs: Sequence[str]) -> tuple[Feed, str]:
        """A new feed, and its key, which can't be had again. It ends with the named key of who acts. Raises
        AlreadyExists, InvalidRequest, Forbidden."""
        if labels and jobs:
            raise InvalidRequest("jobs: give labels or names of jobs, not both", field="jobs")
        origin, now = who_acts(), self._clock.now()
        caller = principal("", "", "local", []) if origin is None else origin.principal
        for job, found in zip(jobs, await self._store.get_jobs(jobs) if jobs else (), strict=True):
            if found is None or not may_reach_job(caller, found):
                raise InvalidRequest(f"jobs: there is no job named {job!r}", field="jobs")
        bound = None if caller.queues is None else tuple(sorted(caller.queues))
        of_key = caller.kind == "key" and caller.subject not in RESERVED
        (maker,) = await keys_named(self._store, [caller.subject]) if of_key else [None]
        if of_key and maker is None:
            raise Forbidden(f"the key {caller.name} was revoked", [])
        digest = "" if maker is None else maker.digest
        feed = Feed(name, now, dict(labels), tuple(jobs), bound, caller.labels, caller.name, digest)
        key = urlsafe_b64encode(self._entropy(KEY_BYTES)).decode().rstrip("=")
        record = Record(name=FEED + name, body=msgspec.json.encode(feed), labels={KEY_LABEL: _digest(key)})
        line = told("feed.create", f"feed/{name}", now, after={"labels": feed.labels, "jobs": feed.jobs})
        if (await self._store.put_records([RecordChange(record, records=line)])) != [True]:
            raise AlreadyExists(f"there is a feed {name!r} already; revoke it, or give another name", field="name")
        return feed, key

    async def page(self, after: str | None, limit: int, reader: Principal | None = None) -> Page[Listed]:
        """Feeds by name, as far as the reader may see them, and whether each has ended; at most 200."""
        page = await self._kept.page(after, limit)
        feeds = [feed for _, feed in page.items if _is_for(feed, reader)]
        return Page(tuple(zip(feeds, await self._ended(feeds), strict=True)), page.next_after)

    async def revoke(self, name: str) -> None:
        """Its address is gone. Raises NotFound."""
        origin = who_acts()

        async def wanted(stored: Record | None) -> RecordChange:
            if stored is None or not _is_for(_decode(stored.body), None if origin is None else origin.principal):
                raise NotFound(f"there is no feed {name!r}")
            line = told("feed.revoke", f"feed/{name}", self._clock.now())
            return RecordChange(stored, stored.version, True, line)

        await self._kept.change(name, wanted)

    async def text(self, key: str, known: Collection[str] = ()) -> tuple[str, bytes]:
        """The feed of this key as iCalendar: past runs of 30 days with their outcome, and 60 days ahead; before it a
        tag (32 hexadecimal digits) that stays while its events do. No text where the tag is one of those known. Raises
        NotFound."""
        where = RecordFilter(FEED, labels={KEY_LABEL: _digest(key)})
        found = (await self._store.list_records(where, None, 1)).items
        if not found:
            raise _no_feed()
        feed, now = _decode(found[0].body), self._clock.now()
        if await self._ended([feed]) == [True]:
            raise _no_feed()
        with reading(_reader_of(feed)):
            jobs = await self._jobs(feed)
        holds = await self._holding.look(PLANNED_SECONDS)
        slices, events, until = Slices(), list[Event](), now + AHEAD
        for start in range(0, len(jobs), PAGE_MAX):
            page = jobs[start : start + PAGE_MAX]
            behind = await self._behind(page, now)
            for job in page:
                await slices.give_way()
                events += _once([*behind[job.id], *await _ahead(job, now, until, holds)])
                if len(events) > 2 * EVENTS_MAX:
                    events = await in_thread(_nearest, events, now)
                    until = min(until, now + abs(events[-1].at - now))  # later ones are none of the nearest
        return await in_thread(_written, feed.name, events, now, known)

    async def _ended(self, feeds: Sequence[Feed]) -> list[bool]:
        """Whether the key that made each of them opens nothing any more, or is another one of that name."""
        now, names = self._clock.now(), sorted({feed.by for feed in feeds if feed.key})
        found = zip(names, await keys_named(self._store, names), strict=True)
        alive = {name: key.digest for name, key in found if key is not None and key.opens(now)}
        return [bool(feed.key) and alive.get(feed.by) != feed.key for feed in feeds]

    async def _jobs(self, feed: Feed) -> list[Job]:
        if feed.jobs:
            found = [job for job in await self._store.get_jobs(feed.jobs) if job is not None]
        else:
            found, after = [], None
            while len(found) < JOBS_MAX:
                page = await self._store.list_jobs(JobFilter(labels=feed.labels), after, PAGE_MAX)
                found += page.items
                if (after := page.next_after) is None:
                    break
        return found[:JOBS_MAX]

    async def _behind(self, jobs: Sequence[Job], now: Instant) -> dict[str, list[Event]]:
        """The events of these jobs, by id, that have a run."""
        runs = await self._store.last_runs([job.name for job in jobs], now - BEHIND, now + 1, RUNS_EACH)
        early = [run_id(job.id, each.fire_at) for job in jobs for each in job.overrides if each.done]
        made = await self._store.get_runs(early) if early else []
        by_id, events = {job.id: job for job in jobs}, {job.id: list[Event]() for job in jobs}
        for run in (*(run for some in runs.values() for run in some), *(run for run in made if run is not None)):
            if run.job_id in by_id:
                events[run.job_id].append(event_of(by_id[run.job_id], run))
        return events


async def _ahead(job: Job, now: Instant, until: Instant, holds: Sequence[Hold]) -> list[Event]:
    over = [hold for hold in holds if covers_job(hold.scope, job)]

    def ask() -> list[Event]:
        words, fires = words_of(job), job_fires(job, now, FIRES_EACH, until)
        return [event_ahead(job, at, moved, words, hold_at(over, job, at)) for at, moved in with_moves(job, fires)]

    try:
        return await evaluate(ask, LIST_STEPS)
    except TooExpensive:
        return []


def _once(events: Sequence[Event]) -> Collection[Event]:
    """Of two of one identity the first."""
    return {event.uid: event for event in reversed(events)}.values()


def _nearest(events: Iterable[Event], now: Instant) -> list[Event]:
    """Those that lie the nearest, in that order."""
    return nsmallest(EVENTS_MAX, events, key=lambda event: (abs(event.at - now), event.uid))


def _written(name: str, events: Sequence[Event], now: Instant, known: Collection[str]) -> tuple[str, bytes]:
    """The tag and the text of these events, the nearest of them."""
    kept = sorted(_nearest(events, now), key=lambda event: (event.at, event.uid))
    tag = sha256(msgspec.json.encode((name, kept))).hexdigest()[:TAG_DIGITS]
    return tag, b"" if tag in known else feed_text(name, kept, now)


def _is_for(feed: Feed, reader: Principal | None) -> bool:
    """Whether this caller may see and revoke it: one that is bound those alone that show no more than it may see."""
    if reader is None:
        return True
    queues = reader.queues is None or (feed.queues is not None and set(feed.queues) <= reader.queues)
    return queues and (reader.labels is None or (feed.bound is not None and all(map(reader.may_label, feed.bound))))


def _no_feed() -> NotFound:
    return NotFound("there is no feed at this address, or it has ended")


def _reader_of(feed: Feed) -> Principal:
    """Who sees what its maker might see when it was made."""
    return replace(principal("", "", "local", [], queues=feed.queues), labels=feed.bound)


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
