"""`ports.Store` over MongoDB.

Each method is one call: a single command where that does it, else a few in a row, or one transaction. An answered write
is in the journals of a majority. Each call runs in a task of its own: if the caller is cancelled, the call goes on (and
the driver, which would lose a connection over it, never notices). The methods only say which function does the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.ports import Stats
from horarium.stores.calls import Calls
from horarium.stores.mongo import claim, health, jobs, records, runs, stats
from horarium.stores.mongo.alone import Hold, hold, is_held, let_go, succeed
from horarium.stores.mongo.connect import end_abandoned, make_client, parse_url, server_time, translated, verify
from horarium.stores.mongo.migrate import migrate
from horarium.stores.mongo.session import Session
from horarium.stores.wakeups import Written

T = TypeVar("T")
P = ParamSpec("P")

HINDERED_SECONDS = 2.0
"""A call that takes longer than this may be waiting for a transaction that a dead node left."""


def _on(
    work: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], none: Callable[[], T] | None = None
) -> Callable[Concatenate[MongoStore, P], Coroutine[Any, Any, T]]:
    """The method of the store that has this done. `none`: makes the answer where the first argument is empty."""

    async def call(self: MongoStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if none is not None and not args[0]:
            return none()
        return await self._call(work(self._open(), *args, **kwargs))

    update_wrapper(call, work)
    return call


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

    add_jobs = _on(jobs.add_jobs, list)
    get_jobs = _on(jobs.get_jobs, list)
    get_jobs_by_id = _on(jobs.get_jobs_by_id, list)
    list_jobs = _on(jobs.list_jobs)
    job_health = _on(health.job_health, dict)
    failing_jobs = _on(health.failing_jobs)
    add_health = _on(health.add_health)
    due_jobs = _on(jobs.due_jobs)
    jobs_ahead = _on(jobs.jobs_ahead)
    jobs_trimmed = _on(jobs.jobs_trimmed)
    commit_plans = _on(jobs.commit_plans, list)
    write_whole = _on(jobs.write_whole)

    # -- runs

    add_runs = _on(runs.add_runs, list)
    get_runs = _on(runs.get_runs, list)
    get_run_by_key = _on(runs.get_run_by_key)
    unfinished_runs = _on(runs.unfinished_runs, dict)
    list_runs = _on(runs.list_runs)
    last_runs = _on(runs.last_runs, dict)
    claim_runs = _on(claim.claim_runs)
    first_due = _on(claim.first_due, list)
    settle_runs = _on(runs.settle_runs, list)
    heartbeat_runs = _on(runs.heartbeat_runs, list)
    overdue_runs = _on(runs.overdue_runs)
    prune_runs = _on(runs.prune_runs)
    trim_runs = _on(runs.trim_runs)

    # -- records

    get_records = _on(records.get_records, list)
    list_records = _on(records.list_records)
    put_records = _on(records.put_records, list)
    prune_records = _on(records.prune_records)

    # -- the rest

    async def server_time(self) -> Instant:
        """What time the primary has. Not in the port: `ServerClock` asks it."""
        written = None
        try:
            now, written = await self._call(server_time(self._open().client, self.location))
        finally:
            self.written.saw(written)
        return now

    beat_node = _on(stats.beat_node)
    list_nodes = _on(stats.list_nodes)

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
