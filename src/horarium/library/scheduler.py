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
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from weakref import WeakSet

from horarium.clock import Clock, to_instant
from horarium.delivery.handler import HandlerFunction
from horarium.errors import InvalidRequest
from horarium.interrupts import on_signals
from horarium.library.batches import BatchMethods
from horarium.library.declaring import Declared, JobSpec, declare, spec_of
from horarium.library.fields import JobArguments, JobFields, Role, SchedulerOptions, check_named, check_options
from horarium.library.home import Home
from horarium.library.labelled import each_labelled
from horarium.library.looking import Looking, states_of
from horarium.library.many_runs import ManyRuns
from horarium.library.named import in_name_of_actor
from horarium.library.one_offs import encode
from horarium.library.plans import PlanMethods
from horarium.library.program import Hook, Program, call_hooks
from horarium.library.resources import (
    ApprovalMethods,
    AttentionMethods,
    CalendarMethods,
    ChannelMethods,
    FeedMethods,
    HoldMethods,
    OverrideMethods,
    QueueMethods,
    RateMethods,
)
from horarium.library.tasks import Decorator, Enqueued, HandlerOptions
from horarium.library.values import Job, Page, Run, id_of, jobs_page, runs_page
from horarium.model import Job as StoredJob
from horarium.model import State, in_wall_time
from horarium.model.identity import is_run_id
from horarium.node.backends import backend_of, make_backend
from horarium.node.options import Options
from horarium.ports import JobFilter, RunFilter, Store
from horarium.triggers import Trigger

if TYPE_CHECKING:
    from horarium.operations.facade import Operations

Surrounding = TypeVar("Surrounding", bound=Callable[..., Any])
Callback = TypeVar("Callback", bound=Hook)

LIBRARY_ROLES: tuple[Role, ...] = ("planner", "dispatcher", "rescuer", "pruner")

MADE: WeakSet[Scheduler] = WeakSet()
"""All that there are: a test moves them to a store in memory."""

log = logging.getLogger("horarium")


class Scheduler(
    ApprovalMethods,
    CalendarMethods,
    HoldMethods,
    RateMethods,
    QueueMethods,
    ChannelMethods,
    OverrideMethods,
    PlanMethods,
    FeedMethods,
    Looking,
    AttentionMethods,
    BatchMethods,
    ManyRuns,
):
    """A scheduler on a store, given by its URL or as an object. `program`: the name of the program whose jobs
    `declare` and the decorator `job` make; programs that share a namespace give a name each. `actor`: in whose name it
    changes things, unless a call names another (`actor=`); the audit then has an entry of each change. Raises
    UnknownArgument or InvalidSetting."""

    def __init__(
        self,
        store: str | Store = "sqlite:///horarium.db",
        *,
        namespace: str = "default",
        program: str | None = None,
        clock: Clock | None = None,
        actor: str | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        self.actor = actor
        check_named(namespace, program)
        check_options(options)
        options.setdefault("roles", LIBRARY_ROLES)
        backend = make_backend(store, namespace) if isinstance(store, str) else backend_of(store)
        self._parts = backend, Options(**options), clock or backend.clock
        self._handlers = {}
        if options.get("buses"):
            self._runtime  # noqa: B018 - it refuses a bus that it does not know
        self._home = Home(isinstance(store, str) and not store.startswith("memory:"))
        self._stopped = asyncio.Event()
        self._program = Program(program, self._handlers, lambda: self._runs)
        MADE.add(self)

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
        self._home.check_open()
        return self._runtime.operations

    async def open(self) -> None:
        """Connect the store and bring its schema up to date. May be called twice. From then on each call from another
        event loop raises Conflict."""
        self._home.check()
        if self._home.loop is None:
            async with self._home.changing:
                if self._home.loop is None:
                    await self._runtime.open()
                    self._home.enter()

    async def close(self) -> None:
        """Stop the loops (see `stop`) and disconnect."""
        self._home.check()
        async with self._home.changing:
            if self._home.loop is not None:
                try:
                    await self.stop()
                finally:
                    self._home.leave()
                    await self._runtime.close()

    def configure(
        self,
        *,
        handler_concurrency: int | None = None,
        grace_seconds: float | None = None,
        node_name: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        """Change these options before `start`; None leaves one as it is. Raises
        InvalidSetting; InvalidRequest once the scheduler runs."""
        if self._runtime.running:
            raise InvalidRequest("configure: do it before the scheduler is started")
        given: dict[str, Any] = {
            "handler_concurrency": handler_concurrency,
            "grace_seconds": grace_seconds,
            "node_name": node_name,
            "queues": queues,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        self._runtime.configure(**changes)

    async def start(self) -> None:
        """Plan, dispatch, rescue and prune in the background, until `stop`. Jobs made by the decorator `job` are
        declared first, unless `declare` was called. Raises Conflict if it ran on another event loop."""
        self._home.check_start()
        await self.open()
        if not self._program.declared:  # also where there are none: the last one may have left the program
            await self.declare()
        if not self._runtime.running:
            await call_hooks(self._program.startups)
        await self._runtime.start()
        self._home.started()

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain: runs under way finish and settle, runs that are only claimed are released. What takes longer than the
        grace (left out: the option `grace_seconds`, 30) is interrupted and released, to be begun again elsewhere or at
        the next start. Ends `run_forever`. May be called twice."""
        self._home.check()
        self._stopped.set()
        was_running = self._runtime.running
        await self._runtime.stop(grace_seconds)
        if was_running:
            async with AsyncExitStack() as stack:  # each of them is called, though one before it fails
                for hook in reversed(self._program.shutdowns):
                    stack.push_async_callback(call_hooks, [hook])

    async def run_forever(self) -> None:
        """`start`, wait for SIGINT, SIGTERM or `stop`, then `stop`. A second signal ends the grace, a third one the
        process. Signals are heeded in the main thread only."""
        loop = asyncio.get_running_loop()
        with on_signals(lambda: loop.call_soon_threadsafe(self.ask_to_stop)):
            await self.run_until_asked()

    def ask_to_stop(self) -> None:
        """Let `run_forever` end; asked again, without waiting for runs under way. On the event loop only."""
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

    def handler(self, name: str | None = None, **options: Unpack[HandlerOptions]) -> Decorator[Enqueued]:
        """Register a function, async or plain, under a name (left out: its own). Register before `start`. The function
        stays as it is, and is a task too: `await function.enqueue(...)`.

        `concurrency`: how many runs of it this process performs at one time; the others stay in the store for other
        processes. (Left out: as many as the option `handler_concurrency` allows for all handlers together, 100.) For
        the other options see `HandlerOptions`."""
        return Decorator(self._program.registering(name, options), self.enqueue)

    def add_handler(self, name: str, function: HandlerFunction, **options: Unpack[HandlerOptions]) -> None:
        """As the decorator `handler`. Raises InvalidJob for a name that is taken, a function that can't be a handler,
        or once the scheduler runs."""
        self._program.add_handler(name, function, options)

    def around(self, function: Surrounding) -> Surrounding:
        """A decorator: every handler is called within this context. On the event loop: an async generator function of
        the run that yields once (what comes before the `yield` is done before the call, what comes after it
        afterwards; an error of the handler is raised there), or a function that returns an async context manager; a
        plain generator function is called within the handler's own thread, right around it. Of
        several the first is the outermost. One that keeps an error to itself has mended it. Register before `start`."""
        self._program.add_around(function)
        return function

    def on_startup(self, function: Callback) -> Callback:
        """A decorator: this function, async or plain, is called when the scheduler starts, before anything is
        performed. If it raises, the start fails."""
        self._program.add_hook(self._program.startups, function)
        return function

    def on_shutdown(self, function: Callback) -> Callback:
        """A decorator: this function, async or plain, is called when the scheduler has stopped, after the last run. If
        it raises, the others are called all the same, and the store is closed."""
        self._program.add_hook(self._program.shutdowns, function)
        return function

    # ---- jobs

    @in_name_of_actor
    async def add_job(
        self,
        /,
        name: str,
        trigger: Trigger | Mapping[str, Any],
        *,
        actor: str | None = None,
        **fields: Unpack[JobArguments],
    ) -> Job:
        """Define a job, or bring the existing one of that name to this content (unchanged content changes nothing).

        The target is one of `handler` (a name or a registered function, with `args`), `http` (a URL, or the fields of
        an HTTP target), `queue` or `bus` (with `payload`), or `target` in full. The other fields are those of a job;
        policies are structs, mappings or (`catch_up`, `concurrency`) a bare word. Raises InvalidJob or InvalidTrigger,
        both ValueErrors, which name every field that is wrong.
        """
        job, _ = await self._operations.jobs.put_job(self._program.definition(JobSpec(name, trigger, fields)))
        return await self._shown(job)

    async def _shown(self, job: StoredJob) -> Job:
        return Job(job, *await self._operations.health([job]))

    def job(
        self,
        trigger: Trigger | Mapping[str, Any],
        name: str | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        **fields: Unpack[JobFields],
    ) -> Decorator[Enqueued]:
        """A job that calls this function: `@scheduler.job(every("5m"))`. The function is registered under its own name
        unless it is a handler already; the job's name is the handler's unless given. The job is checked here, and
        declared (see `declare`) when the scheduler starts."""
        return Decorator(self._program.scheduling(trigger, name, args, fields), self.enqueue)

    @in_name_of_actor
    async def declare(
        self,
        jobs: Iterable[JobSpec | Mapping[str, Any]] = (),
        *,
        prune: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Declared:
        """Make the program's list of jobs the truth: those listed (`job(...)`, or a mapping of what `add_job` takes)
        and those made by the decorator are defined or brought to this content; those that an earlier version of the
        program declared and that have left it are `gone` in the answer, and deleted with `prune`, which needs a program
        with a name. `dry_run`: says so, and writes nothing. Jobs of other programs, and those made in other ways, are
        never deleted. Everything is checked before anything is written. Raises InvalidRequest, InvalidJob or
        InvalidTrigger."""
        listed = [self._program.definition(spec_of(given)) for given in jobs] + self._program.jobs
        done = await declare(self._operations, listed, self._program.name, prune=prune, dry_run=dry_run)
        self._program.declared = self._program.declared or not dry_run
        return done

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NotFound."""
        return await self._shown(await self._operations.jobs.get_job(name))

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
        page = await self._operations.jobs.list_jobs(where, after, limit)
        return jobs_page(page, await self._operations.health(page.items))

    @in_name_of_actor
    async def delete_job(self, name: str, *, actor: str | None = None) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop."""
        await self._operations.jobs.delete_job(name)

    @in_name_of_actor
    async def delete_jobs(self, *, labels: Mapping[str, str], actor: str | None = None) -> int:
        """End every job that has all of these labels. How many."""
        return await each_labelled(self._operations, labels, self.delete_job)

    @in_name_of_actor
    async def pause_job(
        self, name: str, reason: str | None = None, *, until: datetime | None = None, actor: str | None = None
    ) -> Job:
        """No later fire time runs until it is resumed, or until an instant: then it goes on by itself."""
        return await self._shown(await self._operations.jobs.pause_job(name, reason, until))

    @in_name_of_actor
    async def resume_job(self, name: str, *, actor: str | None = None) -> Job:
        """Go on with the fire times from now on."""
        return await self._shown(await self._operations.jobs.resume_job(name))

    @in_name_of_actor
    async def pause_jobs(
        self,
        *,
        labels: Mapping[str, str],
        reason: str | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> int:
        """Pause every job that has all of these labels, as `pause_job` does. How many they are."""
        return await each_labelled(self._operations, labels, lambda name: self.pause_job(name, reason, until=until))

    @in_name_of_actor
    async def resume_jobs(self, *, labels: Mapping[str, str], actor: str | None = None) -> int:
        """Resume every job that has all of these labels. How many they are."""
        return await each_labelled(self._operations, labels, self.resume_job)

    @in_name_of_actor
    async def trigger_job(
        self, name: str, payload: Any = None, *, unique_key: str | None = None, actor: str | None = None
    ) -> Run:
        """A run now, under the job's overlap policy. With a `unique_key`, the run of this job that was made under it
        first, also where it has another payload."""
        encoded = None if payload is None else encode("payload", payload)
        return Run(await self._operations.jobs.trigger_job(name, encoded, unique_key))

    @in_name_of_actor
    async def backfill_job(self, name: str, start: datetime, end: datetime, *, actor: str | None = None) -> list[Run]:
        """Runs for the fire times in [start, end), at most 1,000."""
        return [Run(run) for run in (await self._operations.jobs.backfill_job(name, start, end)).runs]

    async def fires(self, name: str, count: int = 10) -> list[datetime]:
        """The next fire times of a job."""
        return (await self._operations.jobs.fires(name, count))[0]

    # ---- runs

    async def get_run(self, run_id: Run | str) -> Run:
        """The run of that id. Raises NotFound."""
        return Run(in_wall_time(await self._operations.runs.get_run(id_of(run_id)), self._operations.clock))

    async def list_runs(
        self,
        *,
        job: str | None = None,
        states: State | str | Sequence[State | str] = (),
        queue: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 200,
    ) -> Page[Run]:
        """Runs, newest fire time first, `limit` (at most 200) a page."""
        where = RunFilter(
            job=job,
            states=states_of(states),
            queue=queue,
            since=None if since is None else to_instant(since),
            until=None if until is None else to_instant(until),
        )
        if after is not None and not is_run_id(after):
            raise InvalidRequest("after: give the `next_after` of the page before", field="after")
        return runs_page(await self._operations.runs.list_runs(where, after, limit), self._operations.clock)

    @in_name_of_actor
    async def cancel_run(
        self, run_id: Run | str, reason: str = "cancelled by request", *, actor: str | None = None
    ) -> Run:
        """Cancel a pending run at once; ask a running one to stop."""
        cancelled = await self._operations.runs.cancel_run(id_of(run_id), reason)
        return Run(in_wall_time(cancelled, self._operations.clock))

    @in_name_of_actor
    async def retry_run(self, run_id: Run | str, payload: Any = None, *, actor: str | None = None) -> Run:
        """A new run for the work of one that failed or was cancelled; `payload`: in place of its own."""
        encoded = None if payload is None else encode("payload", payload)
        return Run(await self._operations.runs.retry_run(id_of(run_id), encoded))
