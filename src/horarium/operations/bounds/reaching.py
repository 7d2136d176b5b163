"""Lists for callers that are bound to queues: what they may see, and nothing of any other, places to go on included.

Runs are listed by queue, so theirs are listed one queue after another and merged. Jobs are not: theirs are looked for
among all, a bounded number at a time, and where that ends between jobs of others the place is sealed.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256, shake_256
from hmac import compare_digest
from hmac import new as hmac

from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.access.roles import Principal
from horarium.errors import Forbidden
from horarium.model import Job, Run
from horarium.model.records import Record, RecordChange
from horarium.operations.bounds.listing import Slices
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, JobFilter, Page, RunFilter, Store

PULLED = "pull/"
SECRET = "secret/places"
SECRET_BYTES = 32
STAMP_BYTES = 16
SEALED = "~"
"""How a sealed place begins; no name of a job does."""
JOBS_LOOKED_AT = 10_000

ListRuns = Callable[[RunFilter, str | None, int], Awaitable[Page[Run]]]


async def list_runs(ask: ListRuns, caller: Principal, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    """The runs that this caller may see, as `ask` lists them."""
    if caller.queues is None:
        return await ask(where, after, limit)
    queues = [PULLED + queue for queue in sorted(caller.queues)] if where.queue is None else [where.queue]
    pages = [await ask(replace(where, queue=queue), after, limit) for queue in queues if caller.may_reach(queue)]
    # Below where the list of one queue ends, it may have more.
    ends = max((page.next_after for page in pages if page.next_after is not None), default=None)
    found = sorted((run for page in pages for run in page.items), key=lambda run: run.id, reverse=True)
    whole = [run for run in found if ends is None or run.id >= ends]
    if len(whole) > limit:
        return Page(tuple(whole[:limit]), whole[limit - 1].id)
    return Page(tuple(whole), ends)


class Places:
    """Lists of jobs, for callers that may not see all of them."""

    def __init__(self, context: Context) -> None:
        self._store, self._entropy = context.store, context.entropy
        self._secret: bytes | None = None

    async def list_jobs(self, caller: Principal, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        """Those of its queues, by name. `after`: a name, or a sealed one."""
        found: list[Job] = []
        place = await self._opened(after) if after is not None and after.startswith(SEALED) else after
        slices = Slices()
        for _ in range(JOBS_LOOKED_AT // PAGE_MAX):
            page = await self._store.list_jobs(where, place, PAGE_MAX)
            await slices.give_way()
            found += (job for job in page.items if caller.may_reach(job.queue))
            if len(found) > limit:
                return Page(tuple(found[:limit]), found[limit - 1].name)
            if page.next_after is None:
                return Page(tuple(found))
            place = page.next_after
        return Page(tuple(found), None if place is None else await self._sealed(place))

    # ---- places between what others have

    async def _sealed(self, place: str) -> str:
        """The place as a text that says nothing, but to a node of ours: the same each time, and not to be made up."""
        text, secret = place.encode(), await self._read_secret()
        stamp = _stamp(secret, text)
        return SEALED + urlsafe_b64encode(stamp + _veiled(secret, stamp, text)).decode().rstrip("=")

    async def _opened(self, sealed: str) -> str:
        """Nothing, for what we did not seal: the beginning."""
        secret = await self._read_secret()
        try:
            given = urlsafe_b64decode(sealed[len(SEALED) :] + "==")
        except ValueError:
            return ""
        stamp = given[:STAMP_BYTES]
        text = _veiled(secret, stamp, given[STAMP_BYTES:])
        return text.decode(errors="replace") if compare_digest(stamp, _stamp(secret, text)) else ""

    async def _read_secret(self) -> bytes:
        while self._secret is None:
            (stored,) = await self._store.get_records([SECRET])
            if stored is None:
                await self._store.put_records([RecordChange(Record(name=SECRET, body=self._entropy(SECRET_BYTES)))])
            else:
                self._secret = stored.body
        return self._secret


def is_sealed(text: str) -> bool:
    """Whether a place looks like one that was sealed."""
    return text.startswith(SEALED) and text.isascii()


def _stamp(secret: bytes, text: bytes) -> bytes:
    return hmac(secret, b"stamp" + text, sha256).digest()[:STAMP_BYTES]


def _veiled(secret: bytes, stamp: bytes, text: bytes) -> bytes:
    """The text, under a stream of bytes that belongs to the stamp; veiled twice, it is as it was."""
    stream = shake_256(secret + stamp).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))


# ---- what jobs may set off


async def require_followed(store: Store, after: Job, before: Job | None = None) -> None:
    """Raises Forbidden if who acts is bound to queues, and makes runs of a job follow that is in none of these, or not
    there."""
    origin = who_acts()
    if origin is None or origin.principal.queues is None:
        return
    names = sorted(_followed(after) - (frozenset() if before is None else _followed(before)) - {after.name})
    found = await store.get_jobs(names) if names else []
    others = [
        name for name, job in zip(names, found, strict=True) if job is None or not origin.principal.may_reach(job.queue)
    ]
    if others:
        raise Forbidden(f"{origin.principal.name} is bound to queues, and has no job {', '.join(others)} there")


def _followed(job: Job) -> frozenset[str]:
    return frozenset(each.trigger for follows in job.on.values() for each in follows if each.trigger is not None)
