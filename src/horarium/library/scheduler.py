"""The facade that people import: a scheduler inside their own program.

    scheduler = Scheduler("sqlite:///horarium.db")

    @scheduler.handler("report")
    async def report(run): ...

    async with scheduler:
        await scheduler.add_job("nightly", cron("0 3 * * *", timezone="Europe/Berlin"), handler="report")
        await scheduler.run_forever()

`async with` opens the store; `start` sets the services going; `run_forever` does so and waits for a signal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from horarium.clock import Clock, to_instant
from horarium.delivery.handler import HandlerFunction
from horarium.errors import Conflict, InvalidJob, InvalidRequest
from horarium.interrupts import on_signals
from horarium.library.channels import ChannelMethods
from horarium.library.declaring import Declared, JobSpec, declare, spec_of
from horarium.library.fields import JobArguments, JobFields, Role, SchedulerOptions, check_options, trigger_spec
from horarium.library.home import Home
from horarium.library.labelled import each_labelled
from horarium.library.looking import Looking
from horarium.library.many_runs import ManyRuns
from horarium.library.one_offs import RunFields, Wanted, encode, encode_args, one_offs, wanted
from horarium.library.program import Program
from horarium.library.values import Job, Page, Run, jobs_page, runs_page
from horarium.model import Run as StoredRun
from horarium.model import State
from horarium.node.backends import backend_of, make_backend
from horarium.node.runtime import Options, Runtime
from horarium.operations.facade import Operations
from horarium.operations.one_offs import HOLDER_RACES_MAX
from horarium.ports import BATCH_MAX, JobFilter, Placeholders, RunFilter, Store, TransactionalStore
from horarium.triggers import Trigger

Function = TypeVar("Function", bound=HandlerFunction)

LIBRARY_ROLES: tuple[Role, ...] = ("planner", "dispatcher", "rescuer", "pruner")

log = logging.getLogger("horarium")


class Scheduler(ChannelMethods, Looking, ManyRuns):
    """A scheduler on a store, given by its URL or as an object. `program` is whose jobs `declare` and the decorator
    `job` make: programs that share a namespace give a name each. Raises UnknownArgument or InvalidSetting."""

    def __init__(
        self,
        store: str | Store = "sqlite:///horarium.db",
        *,
        namespace: str = "default",
        program: str = "main",
        clock: Clock | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        check_options(options)
        options.setdefault("roles", LIBRARY_ROLES)
        backend = make_backend(store, namespace) if isinstance(store, str) else backend_of(store)
        self._runtime = Runtime(
            backend.store,
            Options(**options),
            clock=clock or backend.clock,
            signal=backend.signal,
            parts=backend.parts,
        )
        self._home = Home()
        self._stopped = asyncio.Event()
        self._program = Program(program, self._runtime.handlers, lambda: self._runtime.running)

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
        return self._home.loop

    @property
    def _operations(self) -> Operations:
        self._home.check()
        return self._runtime.operations

    async def open(self) -> None:
        """Connect the store and bring its schema up to date. May be called twice. From then on each call from another
        event loop raises Conflict."""
        self._home.check()
        if self._home.loop is None:
            await self._runtime.open()
            self._home.enter()

    async def close(self) -> None:
        """Stop what runs (see `stop`) and disconnect."""
        if self._home.loop is not None:
            await self.stop()
            self._home.leave()
            await self._runtime.close()

    def configure(
        self,
        *,
        handler_concurrency: int | None = None,
        grace_seconds: float | None = None,
        node_name: str | None = None,
    ) -> None:
        """Change these options before `start`; None leaves one as it is. Raises
        InvalidSetting; InvalidRequest once the scheduler runs."""
        if self._runtime.running:
            raise InvalidRequest("configure: do it before the scheduler is started")
        given = {"handler_concurrency": handler_concurrency, "grace_seconds": grace_seconds, "node_name": node_name}
        changes = {name: value for name, value in given.items() if value is not None}
        self._runtime.configure(**changes)

    async def start(self) -> None:
        """Plan, dispatch, rescue and prune in the background, until `stop`. Jobs made by the decorator `job` are
        declared first, unless `declare` was called. Raises Conflict if it ran on another event loop."""
        self._home.check_start()
        await self.open()
        if self._program.jobs and not self._program.declared:
            await self.declare()
        await self._runtime.start()
        self._home.started()

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain: what is running finishes and settles, what is only claimed is released. What takes longer than the
        grace (left out: the option `grace_seconds`, 30) is interrupted and released, to be begun again elsewhere or at
        the next start. Ends `run_forever`. May be called twice."""
        self._home.check()
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
            name, places = self._runtime.options.name, self._runtime.options.handler_concurrency
            names = ", ".join(sorted(self._runtime.handlers)) or "none"
            log.info("%s is running; handlers (%d at one time): %s", name, places, names)
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
        self._program.add_handler(name, function, concurrency)

    # ---- jobs

    async def add_job(
        self,
        /,
        name: str,
        trigger: Trigger | Mapping[str, Any],
        **fields: Unpack[JobArguments],
    ) -> Job:
        """Define a job, or bring the existing one of that name to this content (unchanged content changes nothing).

        The target is one of `handler` (a name or a registered function, with `args`), `http` (a URL, or the fields of
        an HTTP target), `queue` or `bus` (with `payload`), or `target` in full. The other fields are those of a job;
        policies are structs, mappings or (`catch_up`, `concurrency`) a bare word. Raises InvalidJob or InvalidTrigger,
        both ValueErrors, which name every field that is wrong.
        """
        job, _ = await self._operations.jobs.put_job(self._program.definition(JobSpec(name, trigger, fields)))
        return Job(job)

    def job(
        self,
        trigger: Trigger | Mapping[str, Any],
        name: str | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        **fields: Unpack[JobFields],
    ) -> Callable[[Function], Function]:
        """A job that calls this function: `@scheduler.job(every("5m"))`. The function is registered under its own name
        unless it is a handler already; the job's name is the handler's unless given. The job is checked here, and
        declared (see `declare`) when the scheduler starts."""
        trigger_spec(trigger)
        self._program.check_stopped("job")

        def register(function: Function) -> Function:
            self._program.add_job(function, name, trigger, args, fields)
            return function

        return register

    async def declare(
        self,
        jobs: Iterable[JobSpec | Mapping[str, Any]] = (),
        *,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Declared:
        """Make the program's list of jobs the truth: those listed (`job(...)`, or a mapping of what `add_job` takes)
        and those made by the decorator are defined or brought to this content; those that an earlier version of the
        program declared and that have left it are `gone` in the answer, and deleted with `prune`. `dry_run`: says so,
        and writes nothing. Jobs of other programs, and those made in other ways, are never touched. Everything is
        checked before anything is written. Raises InvalidJob or InvalidTrigger."""
        listed = [self._program.definition(spec_of(given)) for given in jobs] + self._program.jobs
        done = await declare(self._operations, listed, self._program.name, prune=prune, dry_run=dry_run)
        self._program.declared = self._program.declared or not dry_run
        if done.gone and not prune and not dry_run:
            log.warning(
                "jobs that this program declared earlier and no longer has: %s; they go on until they are deleted, "
                "as declare(..., prune=True) does", ", ".join(done.gone)
            )  # fmt: skip
        return done

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NotFound."""
        return Job(await self._operations.jobs.get_job(name))

    async def list_jobs(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        enabled: bool | None = None,
        prefix: str | None = None,
        finished: bool | None = False,
        after: str | None = None,
        limit: int = 200,
    ) -> Page[Job]:
        """Jobs by name, `limit` (at most 200) a page; `after` is the `next_after` of the page before. `finished`: those
        that can never fire again, which are left out otherwise (None: all)."""
        where = JobFilter(labels or {}, enabled, prefix, finished)
        return jobs_page(await self._operations.jobs.list_jobs(where, after, limit))

    async def delete_job(self, name: str) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop."""
        await self._operations.jobs.delete_job(name)

    async def delete_jobs(self, *, labels: Mapping[str, str]) -> int:
        """End every job that has all of these labels. How many."""
        return await each_labelled(self._operations, labels, self.delete_job)

    async def pause_job(self, name: str, reason: str | None = None) -> Job:
        """No later fire time runs until it is resumed."""
        return Job(await self._operations.jobs.pause_job(name, reason))

    async def resume_job(self, name: str) -> Job:
        """Go on with the fire times from now on."""
        return Job(await self._operations.jobs.resume_job(name))

    async def pause_jobs(self, *, labels: Mapping[str, str], reason: str | None = None) -> int:
        """Pause every job that has all of these labels. How many they are."""
        return await each_labelled(self._operations, labels, lambda name: self.pause_job(name, reason))

    async def resume_jobs(self, *, labels: Mapping[str, str]) -> int:
        """Resume every job that has all of these labels. How many they are."""
        return await each_labelled(self._operations, labels, self.resume_job)

    async def trigger_job(self, name: str, payload: Any = None, *, unique_key: str | None = None) -> Run:
        """A run now, under the job's overlap policy."""
        encoded = None if payload is None else encode("payload", payload)
        return Run(await self._operations.jobs.trigger_job(name, encoded, unique_key))

    async def backfill_job(self, name: str, start: datetime, end: datetime) -> list[Run]:
        """Runs for the fire times in [start, end), at most 1,000."""
        return [Run(run) for run in (await self._operations.jobs.backfill_job(name, start, end)).runs]

    async def fires(self, name: str, count: int = 10) -> list[datetime]:
        """The next fire times of a job."""
        return (await self._operations.jobs.fires(name, count))[0]

    # ---- runs

    async def enqueue(
        self,
        name: str | HandlerFunction,
        args: Mapping[str, Any] | None = None,
        *,
        unique_key: str | None = None,
        connection: Any = None,
        **how: Unpack[RunFields],
    ) -> Run:
        """A one-off run of a handler (its name, or a registered function): now, at an instant (`at`), or after a
        `delay`: a timedelta, seconds, or a text such as `5m`.

        With a `unique_key` that another run holds, that run is returned instead; a run holds its key for as long as it
        is kept (see `retention`), finished or not. Of runs that are due the highest `priority` (-1,000 to 1,000) is
        begun first. With a `connection` of the caller's own (to the same database, where the store allows it: see its
        page) the run is added in the caller's transaction, and exists once that commits. Raises InvalidRequest, and
        WrongArguments where the handler is registered here and can't be called with these args: both ValueErrors; and
        Conflict, with nothing added, where the key's holder is in a transaction that has not committed."""
        (run,) = self._one_offs(name, [args], wanted(how, unique_key))
        for _ in range(HOLDER_RACES_MAX):
            (added,) = await self._add_runs([run], connection)
            if added or unique_key is None:
                return Run(run)
            holder = await self._runtime.store.get_run_by_key(unique_key)
            if holder is not None:
                return Run(holder)
        raise Conflict(
            f"unique_key: {unique_key!r} is held by a run that can't be read: it was added in a transaction that has "
            "not committed, yours perhaps"
        )

    async def enqueue_many(
        self,
        name: str | HandlerFunction,
        args: Sequence[Mapping[str, Any] | None],
        *,
        connection: Any = None,
        **how: Unpack[RunFields],
    ) -> list[str]:
        """One-off runs of one handler in bulk, 1,000 a transaction; with a `connection`, all in that one. Their ids, in
        order."""
        runs = self._one_offs(name, args, wanted(how))
        await self._add_runs(runs, connection)
        return [run.id for run in runs]

    def enqueue_sql(
        self,
        name: str | HandlerFunction,
        args: Sequence[Mapping[str, Any] | None],
        *,
        placeholders: Placeholders = "$1",
        unique_key: str | None = None,
        **how: Unpack[RunFields],
    ) -> tuple[str, tuple[Any, ...]]:
        """A statement that enqueues, and its values, for any driver, synchronous ones too: the caller that executes it
        does so in a transaction of its own. `placeholders`: how that driver marks a value. 1 to 1,000 runs; a
        `unique_key` is for one. PostgreSQL only; the scheduler need not be open. Raises InvalidRequest."""
        if not 1 <= len(args) <= (BATCH_MAX if unique_key is None else 1):
            most = f"{BATCH_MAX:,}" if unique_key is None else "1 with a unique_key"
            raise InvalidRequest(f"args: {len(args)} runs given, 1 to {most} go into a statement", field="args")
        return self._transactional().add_runs_sql(self._one_offs(name, args, wanted(how, unique_key)), placeholders)

    async def _add_runs(self, runs: Sequence[StoredRun], connection: Any) -> list[bool]:
        if connection is None:
            return await self._operations.runs.add_runs(runs)
        store = self._transactional()
        parts = (runs[start : start + BATCH_MAX] for start in range(0, len(runs), BATCH_MAX))
        return [added for part in parts for added in await store.add_runs_in(connection, part)]

    def _transactional(self) -> TransactionalStore:
        """The store, if it can add runs in a transaction of the caller's."""
        store = self._runtime.store
        if not isinstance(store, TransactionalStore):
            raise InvalidRequest(
                "connection: this store can't add runs in a transaction of yours; PostgreSQL can", field="connection"
            )
        return store

    def _one_offs(self, name: object, args: Sequence[Mapping[str, Any] | None], how: Wanted) -> list[StoredRun]:
        handler = self._program.handler_name(name, InvalidRequest)
        payloads = [encode_args(given) for given in args]
        self._program.check_args(handler, payloads)
        return one_offs(handler, payloads, how, self._runtime.clock.now(), self._runtime.entropy(10))

    async def get_run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound."""
        return Run(await self._operations.runs.get_run(run_id))

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
        """Runs, newest fire time first, `limit` (at most 200) a page."""
        where = RunFilter(
            job=job,
            states=frozenset(map(State, states)),
            queue=queue,
            since=None if since is None else to_instant(since),
            until=None if until is None else to_instant(until),
        )
        return runs_page(await self._operations.runs.list_runs(where, after, limit))

    async def cancel_run(self, run_id: str, reason: str = "cancelled by request") -> Run:
        """Cancel a pending run at once; ask a running one to stop."""
        return Run(await self._operations.runs.cancel_run(run_id, reason))

    async def retry_run(self, run_id: str) -> Run:
        """A new run for the work of one that failed or was cancelled."""
        return Run(await self._operations.runs.retry_run(run_id))
