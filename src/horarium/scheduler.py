"""The facade that people import: a scheduler inside their own program.

    scheduler = Scheduler("sqlite:///horarium.db")

    @scheduler.handler("report")
    async def report(run): ...

    async with scheduler:
        await scheduler.add_job("nightly", cron("0 3 * * *", timezone="Europe/Berlin"), handler="report")
        await scheduler.run_forever()

`async with` opens the store; `start` sets the services going in the background; `run_forever` does so and waits for a
signal. Everything that the server does can be done from here, on the same store, at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from horarium.backends import Backend, make_backend
from horarium.clock import Clock, SystemClock, to_instant
from horarium.definitions import read_definition
from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import Conflict, InvalidJob, InvalidRequest, NotFound
from horarium.job_fields import builtins, targets
from horarium.model import HandlerTarget, Job, Run, State
from horarium.one_offs import Wanted, encode, encode_args, one_offs
from horarium.policies import Concurrency, Retention, Retry, Timeouts
from horarium.ports import BATCH_MAX, JobFilter, Page, RunFilter, Stats, Store
from horarium.signals import LocalSignal
from horarium.stopping import on_signals
from horarium.triggers import Trigger
from horarium.wiring import ROLES, Options, Runtime

Function = TypeVar("Function", bound=HandlerFunction)

LIBRARY_ROLES = tuple(role for role in ROLES if role != "api")

HOLDER_RACES_MAX = 3
"""How often a unique key is asked for whose holder was forgotten just then."""

log = logging.getLogger("horarium")


class Scheduler:
    """A scheduler on a store, given by its URL or as an object. `options` are those of `wiring.Options`."""

    def __init__(
        self,
        store: str | Store = "sqlite:///horarium.db",
        *,
        namespace: str = "default",
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        backend = (
            make_backend(store, namespace) if isinstance(store, str) else Backend(store, SystemClock(), LocalSignal())
        )
        self._runtime = Runtime(
            backend.store,
            Options(**{"roles": LIBRARY_ROLES, **options}),
            clock=clock or backend.clock,
            signal=backend.signal,
            parts=backend.parts,
        )
        self._operations = self._runtime.operations
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    # ---- life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which it is open; None: it is not."""
        return self._loop

    async def open(self) -> None:
        """Connect the store and bring its schema up to date. May be called twice."""
        if self._loop is None:
            await self._runtime.open()
            self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Stop what runs (see `stop`) and disconnect."""
        if self._loop is not None:
            await self.stop()
            self._loop = None
            await self._runtime.close()

    def configure(
        self,
        *,
        handler_concurrency: int | None = None,
        grace_seconds: float | None = None,
        node_name: str | None = None,
    ) -> None:
        """Change these options (those of `wiring.Options`) before `start`; None leaves one as it is. Raises
        InvalidSetting; InvalidRequest once the scheduler runs."""
        if self._runtime.running:
            raise InvalidRequest("configure: do it before the scheduler is started")
        given = {"handler_concurrency": handler_concurrency, "grace_seconds": grace_seconds, "node_name": node_name}
        changes = {name: value for name, value in given.items() if value is not None}
        self._runtime.options = Options(**{**vars(self._runtime.options), **changes})

    async def start(self) -> None:
        """Plan, dispatch, rescue and prune in the background, until `stop`."""
        await self.open()
        await self._runtime.start()

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain: what is running finishes and settles, what is only claimed is released. What takes longer than the
        grace (left out: the option `grace_seconds`, 30) is interrupted and released, to be begun again elsewhere or at
        the next start. Ends `run_forever`. May be called twice."""
        self._stopped.set()
        await self._runtime.stop(grace_seconds)

    async def run_forever(self) -> None:
        """`start`, wait for SIGINT, SIGTERM or `stop`, then `stop`. A second signal ends the grace, a third one the
        process. Signals are heeded in the main thread only."""
        loop = asyncio.get_running_loop()
        with on_signals(lambda: loop.call_soon_threadsafe(self.ask_to_stop)):
            await self.run_until_asked()

    def ask_to_stop(self) -> None:
        """Let `run_forever` end; asked again, without waiting for what runs. On the event loop only."""
        if self._stopped.is_set():
            self._runtime.hurry()
        elif self._runtime.running:
            log.info("stopping: what runs is given %g s to finish", self._runtime.options.grace_seconds)
        self._stopped.set()

    async def run_until_asked(self) -> None:
        """As `run_forever`, with no regard to signals."""
        self._stopped.clear()
        try:
            await self.start()
            options = self._runtime.options
            names = ", ".join(sorted(self._runtime.handlers)) or "none"
            log.info(
                "%s is running; handlers (%d at one time): %s", options.node_name, options.handler_concurrency, names
            )
            await self._stopped.wait()
        finally:
            await self.stop()
        log.info("stopped")

    # ---- handlers

    def handler(self, name: str | None = None, *, concurrency: int | None = None) -> Callable[[Function], Function]:
        """Register a function, async or plain, under a name (left out: its own). Register before `start`.

        `concurrency`: how many runs of it this process performs at one time; the others stay in the store for other
        processes. (Left out: as many as the option `handler_concurrency` allows for all handlers together, 100.)"""
        if name is not None and not isinstance(name, str):
            raise InvalidJob("handler: write @scheduler.handler() or @scheduler.handler('name'), with parentheses")

        def register(function: Function) -> Function:
            self.add_handler(name or function.__name__, function, concurrency=concurrency)
            return function

        return register

    def add_handler(self, name: str, function: HandlerFunction, *, concurrency: int | None = None) -> None:
        """As the decorator `handler`. Raises InvalidJob for a name that is taken, a function that can't be a handler,
        or once the scheduler runs."""
        if self._runtime.running:
            raise InvalidJob(f"handler {name!r}: register handlers before the scheduler is started")
        if name in self._runtime.handlers:
            raise InvalidJob(f"handler {name!r} is registered already")
        read_definition({"name": name, "trigger": {}, "target": {"type": "handler", "name": name}})
        self._runtime.handlers[name] = Handler(name, function, concurrency)

    # ---- jobs

    async def add_job(
        self,
        /,
        name: str,
        trigger: Trigger | Mapping[str, Any],
        *,
        handler: str | None = None,
        args: Mapping[str, Any] | None = None,
        http: str | Mapping[str, Any] | None = None,
        queue: str | None = None,
        bus: str | None = None,
        payload: Any = None,
        target: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        """Define a job, or bring the existing one of that name to this content (unchanged content changes nothing).

        The target is one of `handler` (with `args`), `http` (a URL, or the fields of an HTTP target), `queue` or `bus`
        (with `payload`), or `target` in full. `fields` are those of a job: enabled, labels, catch_up, overlap,
        retry, timeouts, priority, concurrency, jitter_seconds, starts_at, ends_at, fires_max, retention. Raises
        InvalidJob or InvalidTrigger, both ValueErrors.
        """
        spec = trigger.spec() if isinstance(trigger, Trigger) else dict(trigger)
        aims = targets(handler, args, http, queue, bus, payload, target)
        if len(aims) != 1:
            raise InvalidJob("target: give exactly one of handler, http, queue, bus and target", field="target")
        definition = read_definition({"name": name, "trigger": spec, "target": aims[0], **builtins(fields)})
        if isinstance(definition.target, HandlerTarget):
            self._check_args(definition.target.name, [encode("args", definition.target.args)])
        job, _ = await self._operations.put_job(definition)
        return job

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NotFound."""
        return await self._operations.get_job(name)

    async def list_jobs(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        enabled: bool | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = 200,
    ) -> Page[Job]:
        """Jobs by name, `limit` (200 at the most) a page; `after` is the `next_after` of the page before."""
        return await self._operations.list_jobs(JobFilter(labels or {}, enabled, prefix), after, limit)

    async def delete_job(self, name: str) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop."""
        await self._operations.delete_job(name)

    async def delete_jobs(self, *, labels: Mapping[str, str]) -> int:
        """End every job that has all of these labels. How many."""
        return await self._each(labels, self.delete_job)

    async def pause_job(self, name: str, reason: str | None = None) -> Job:
        """No later fire time runs until it is resumed."""
        return await self._operations.pause_job(name, reason)

    async def resume_job(self, name: str) -> Job:
        """Go on with the fire times from now on."""
        return await self._operations.resume_job(name)

    async def pause_jobs(self, *, labels: Mapping[str, str], reason: str | None = None) -> int:
        """Pause every job that has all of these labels. How many they are."""
        return await self._each(labels, lambda name: self.pause_job(name, reason))

    async def resume_jobs(self, *, labels: Mapping[str, str]) -> int:
        """Resume every job that has all of these labels. How many they are."""
        return await self._each(labels, self.resume_job)

    async def _each(self, labels: Mapping[str, str], act: Callable[[str], Awaitable[Any]]) -> int:
        """Do it to each job of these labels; one that is gone by then needs it no more. To how many."""
        if not labels:
            raise InvalidRequest("labels: give at least one; no labels do not mean every job", field="labels")
        after: str | None = None
        count = 0
        while True:
            page = await self.list_jobs(labels=labels, after=after)
            for job in page.items:
                with suppress(NotFound):
                    await act(job.name)
                    count += 1
            if page.next_after is None:
                return count
            after = page.next_after

    async def trigger_job(self, name: str, payload: Any = None, *, unique_key: str | None = None) -> Run:
        """A run now, under the job's overlap policy."""
        encoded = None if payload is None else encode("payload", payload)
        return await self._operations.trigger_job(name, encoded, unique_key)

    async def backfill_job(self, name: str, start: datetime, end: datetime) -> list[Run]:
        """Runs for the fire times in [start, end), 1,000 at the most."""
        return await self._operations.backfill_job(name, start, end)

    async def fires(self, name: str, count: int = 10) -> list[datetime]:
        """The next fire times of a job."""
        return (await self._operations.fires(name, count))[0]

    # ---- runs

    async def enqueue(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        priority: int = 0,
        unique_key: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
        timeouts: Timeouts | Mapping[str, Any] | None = None,
        retention: Retention | Mapping[str, Any] | None = None,
        concurrency: Concurrency | Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Run:
        """A one-off run of the handler `name`: now, at an instant, or after a delay (timedelta or seconds).

        With a `unique_key` that another run holds, that run is returned instead; a run holds its key for as long as it
        is kept (see `retention`), finished or not. Of runs that are due the highest `priority` (-1,000 to 1,000) is
        begun first. With a `connection` of the caller's own (to the same database, where the store allows it: see its
        page) the run is added in the caller's transaction, and exists once that commits. Raises InvalidRequest, and
        WrongArguments where the handler is registered here and can't be called with these args: both ValueErrors; and
        Conflict, with nothing added, where the key's holder stands in a transaction that has not committed."""
        wanted = Wanted(at, delay, priority, unique_key, retry, timeouts, retention, concurrency)
        (run,) = self._one_offs(name, [args], wanted)
        for _ in range(HOLDER_RACES_MAX):
            (added,) = await self._add_runs([run], connection)
            if added or unique_key is None:
                return run
            holder = await self._runtime.store.get_run_by_key(unique_key)
            if holder is not None:
                return holder
        raise Conflict(
            f"unique_key: {unique_key!r} is held by a run that can't be read: it was added in a transaction that has "
            "not committed, yours perhaps"
        )

    async def enqueue_many(
        self,
        name: str,
        args: Sequence[Mapping[str, Any] | None],
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        priority: int = 0,
        retry: Retry | Mapping[str, Any] | None = None,
        timeouts: Timeouts | Mapping[str, Any] | None = None,
        retention: Retention | Mapping[str, Any] | None = None,
        concurrency: Concurrency | Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> list[str]:
        """One-off runs of one handler in bulk, 1,000 a transaction; with a `connection`, all in that one. Their ids, in
        order."""
        wanted = Wanted(at, delay, priority, None, retry, timeouts, retention, concurrency)
        runs = self._one_offs(name, args, wanted)
        await self._add_runs(runs, connection)
        return [run.id for run in runs]

    def enqueue_sql(
        self,
        name: str,
        args: Sequence[Mapping[str, Any] | None],
        *,
        placeholders: str = "$1",
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        priority: int = 0,
        unique_key: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
        timeouts: Timeouts | Mapping[str, Any] | None = None,
        retention: Retention | Mapping[str, Any] | None = None,
        concurrency: Concurrency | Mapping[str, Any] | None = None,
    ) -> tuple[str, tuple[Any, ...]]:
        """A statement that enqueues, and its values, for any driver, synchronous ones too: whoever executes it does
        so in a transaction of their own. `placeholders`: how that driver marks a value, `$1` or `%s`. 1 to 1,000 runs;
        a `unique_key` is for one. PostgreSQL only; the scheduler need not be open. Raises InvalidRequest."""
        if not 1 <= len(args) <= (BATCH_MAX if unique_key is None else 1):
            most = f"{BATCH_MAX:,}" if unique_key is None else "1 with a unique_key"
            raise InvalidRequest(f"args: {len(args)} runs given, 1 to {most} go into a statement", field="args")
        wanted = Wanted(at, delay, priority, unique_key, retry, timeouts, retention, concurrency)
        runs = self._one_offs(name, args, wanted)
        statement: tuple[str, tuple[Any, ...]] = self._ability("add_runs_sql")(runs, placeholders)
        return statement

    async def _add_runs(self, runs: Sequence[Run], connection: Any) -> list[bool]:
        if connection is None:
            return await self._operations.add_runs(runs)
        add = self._ability("add_runs_in")
        parts = (runs[start : start + BATCH_MAX] for start in range(0, len(runs), BATCH_MAX))
        return [added for part in parts for added in await add(connection, part)]

    def _ability(self, name: str) -> Any:
        """What only some stores can do."""
        found = getattr(self._runtime.store, name, None)
        if found is None:
            raise InvalidRequest(
                "connection: this store can't add runs in a transaction of yours; PostgreSQL can", field="connection"
            )
        return found

    def _one_offs(self, name: str, args: Sequence[Mapping[str, Any] | None], wanted: Wanted) -> list[Run]:
        payloads = [encode_args(given) for given in args]
        self._check_args(name, payloads)
        return one_offs(name, payloads, wanted, self._runtime.clock.now(), self._runtime.entropy(10))

    def _check_args(self, name: str, payloads: Sequence[bytes | None]) -> None:
        """A handler that is registered here must be able to take them."""
        handler = self._runtime.handlers.get(name)
        if handler is not None and not handler.arguments.free:
            for payload in payloads:
                handler.arguments.of(payload, {})

    async def get_run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound."""
        return await self._operations.get_run(run_id)

    async def list_runs(
        self,
        *,
        job: str | None = None,
        states: Sequence[State | str] = (),
        queue: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 200,
    ) -> Page[Run]:
        """Runs, newest fire time first, `limit` (200 at the most) a page."""
        where = RunFilter(
            job=job,
            states=frozenset(map(State, states)),
            queue=queue,
            since=None if since is None else to_instant(since),
            until=None if until is None else to_instant(until),
        )
        return await self._operations.list_runs(where, after, limit)

    async def cancel_run(self, run_id: str, reason: str = "cancelled by request") -> Run:
        """Cancel a pending run at once; ask a running one to stop."""
        return await self._operations.cancel_run(run_id, reason)

    async def retry_run(self, run_id: str) -> Run:
        """A new run for the work of one that failed or was cancelled."""
        return await self._operations.retry_run(run_id)

    async def stats(self) -> Stats:
        """Counts by queue."""
        return await self._operations.stats()
