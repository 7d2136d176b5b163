"""`ports.Store` over MongoDB.

Each method is one call: a single command where that does it, else a few in a row, or one transaction. An answered write
is in the journals of a majority. Each call runs in a task of its own: if the caller is cancelled, the call goes on (and
the driver, which would lose a connection over it, never notices). The methods only say which function does the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Health, Job, Level, Node, Plan, Run, RunChange, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import NOTHING_ALONG, Along, Beat, Claimed, JobFilter, Page, Pulse, RunFilter, Stats
from horarium.stores.calls import Calls
from horarium.stores.mongo import claim, health, jobs, records, runs, stats
from horarium.stores.mongo.alone import Hold, hold, is_held, let_go, succeed
from horarium.stores.mongo.connect import end_abandoned, make_client, parse_url, server_time, translated, verify
from horarium.stores.mongo.migrate import migrate
from horarium.stores.mongo.session import Session
from horarium.stores.written import Written

T = TypeVar("T")

HINDERED_SECONDS = 2.0
"""A call that takes longer than this may be waiting for a transaction that a dead node left."""


class MongoStore:
    """A store in a MongoDB database. For its methods see `ports.Store`; for the forms of `url`, `connect.parse_url`.
    Its collections are called `horarium_...`; `open` creates them."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.namespace = namespace
        self.location = parse_url(url)
        self._session: Session | None = None
        self._calls = Calls()
        self._freeing: asyncio.Task[bool] | None = None
        self.written = Written()

    async def open(self) -> None:
        if self._session is not None:
            return
        client, held = make_client(self.location), None
        try:
            held = await hold(self.location) if await verify(client, self.location) else None
            await migrate(client[self.location.database], self.location)
            session = Session(client, self.location, self.namespace, held)
            with translated(self.location):
                if held is None and await is_held(session.database):
                    await session.whole(lambda within: succeed(session.database, within))
        except BaseException:
            await client.close()
            if held is not None:
                await let_go(held)
            raise
        self._session = session

    async def close(self) -> None:
        session, self._session = self._session, None
        await self._calls.all_over()
        if session is not None:
            await session.client.close()
            if session.hold is not None:
                await let_go(session.hold)

    async def check(self) -> None:
        await self._call(_check(self._open()))

    def _open(self) -> Session:
        if self._session is None:
            raise StoreUnavailable(f"the store at {self.location.shown} is not open; call open() first")
        return self._session

    async def _call(self, call: Coroutine[Any, Any, T], *, beside: bool = False) -> T:
        """`beside`: on a standalone server, not in turn with what takes place alone there."""
        loop = asyncio.get_running_loop()
        held = None if self._session is None else self._session.hold
        task = self._calls.start(call if held is None else _in_turn(call, held, beside))
        timer = loop.call_later(HINDERED_SECONDS, self._free, task)
        task.add_done_callback(lambda _: timer.cancel())
        with translated(self.location):
            return await asyncio.shield(task)

    def _free(self, hindered: asyncio.Task[Any]) -> None:
        """A write without a transaction waits at the server, which does not say for what."""
        if not hindered.done() and self._session is not None and self._session.hold is None:
            if self._freeing is None or self._freeing.done():
                self._freeing = self._calls.start(end_abandoned(self._session.client))
            asyncio.get_running_loop().call_later(HINDERED_SECONDS, self._free, hindered)

    # -- jobs

    async def add_jobs(self, jobs_: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._call(jobs.add_jobs(self._open(), jobs_, along)) if jobs_ else []

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return await self._call(jobs.get_jobs(self._open(), names)) if names else []

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call(jobs.get_jobs_by_id(self._open(), ids)) if ids else []

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await self._call(jobs.list_jobs(self._open(), where, after, limit))

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return await self._call(health.job_health(self._open(), job_ids)) if job_ids else {}

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        return await self._call(health.failing_jobs(self._open(), limit))

    async def add_health(self, health_: Mapping[str, Health]) -> None:
        await self._call(health.add_health(self._open(), health_))

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        return await self._call(jobs.due_jobs(self._open(), until, limit, after))

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        return await self._call(jobs.jobs_ahead(self._open(), until, after, limit))

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        return await self._call(jobs.jobs_trimmed(self._open(), after, limit))

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await self._call(jobs.commit_plans(self._open(), plans, steady)) if plans else []

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        return await self._call(jobs.write_whole(self._open(), whole, steady))

    # -- runs

    async def add_runs(self, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._call(runs.add_runs(self._open(), runs_, along)) if runs_ else []

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return await self._call(runs.get_runs(self._open(), ids)) if ids else []

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        return await self._call(runs.get_run_by_key(self._open(), unique_key))

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        return await self._call(runs.unfinished_runs(self._open(), job_ids)) if job_ids else {}

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        return await self._call(runs.list_runs(self._open(), where, after, limit))

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        return await self._call(runs.last_runs(self._open(), jobs, since, until, limit)) if jobs else {}

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        return await self._call(claim.claim_runs(self._open(), queues, limit, worker, now, until, steady))

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return await self._call(claim.first_due(self._open(), levels)) if levels else []

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return await self._call(runs.settle_runs(self._open(), changes, steady)) if changes else []

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        return await self._call(runs.heartbeat_runs(self._open(), beats, steady)) if beats else []

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await self._call(runs.overdue_runs(self._open(), now, limit, steady))

    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await self._call(runs.prune_runs(self._open(), now, limit))

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        return await self._call(runs.trim_runs(self._open(), job_id, keep, limit))

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        return await self._call(records.get_records(self._open(), names)) if names else []

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await self._call(records.list_records(self._open(), where, after, limit))

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        return await self._call(records.put_records(self._open(), changes)) if changes else []

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        return await self._call(records.prune_records(self._open(), prefix, until, limit))

    # -- the rest

    async def server_time(self) -> Instant:
        """What time the primary has. Not in the port: `ServerClock` asks it."""
        written = None
        try:
            now, written = await self._call(server_time(self._open().client, self.location))
        finally:
            self.written.saw(written)
        return now

    async def beat_node(self, node: Node) -> None:
        await self._call(stats.beat_node(self._open(), node))

    async def list_nodes(self, since: Instant) -> list[Node]:
        return await self._call(stats.list_nodes(self._open(), since))

    async def stats(self, now: Instant) -> Stats:
        return await self._call(stats.count(self._open(), now), beside=True)


async def _in_turn(call: Coroutine[Any, Any, T], held: Hold, beside: bool) -> T:
    try:
        if beside:
            await held.make_sure()
            return await call
        async with held.shared():
            return await call
    finally:
        call.close()


async def _check(session: Session) -> None:
    """A write that has to reach the majority's journals."""
    where = {"_id": session.key("check")}
    await session.gates.update_one(where, {"$inc": {"checks": 1}, "$currentDate": {"used_at": True}}, upsert=True)
