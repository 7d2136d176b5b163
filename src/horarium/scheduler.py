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
import signal as os_signal
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from horarium.backends import Backend, make_backend
from horarium.clock import Clock, Instant, SystemClock, to_instant, to_micros
from horarium.definitions import read_definition
from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import InvalidJob, InvalidRequest
from horarium.model import PAYLOAD_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN, Cause, Job, Run, RunPolicy, State, uuid7s
from horarium.policies import Concurrency, Retention, Retry, Timeouts
from horarium.ports import BATCH_MAX, JobFilter, Page, RunFilter, Stats, Store
from horarium.signals import LocalSignal
from horarium.triggers import Trigger
from horarium.wiring import ROLES, Options, Runtime

Function = TypeVar("Function", bound=HandlerFunction)

LIBRARY_ROLES = tuple(role for role in ROLES if role != "api")


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
        self._opened = False

    # ---- life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect the store and bring its schema up to date. May be called twice."""
        if not self._opened:
            await self._runtime.open()
            self._opened = True

    async def close(self) -> None:
        """Stop what runs (see `stop`) and disconnect."""
        if self._opened:
            self._opened = False
            await self._runtime.close()

    async def start(self) -> None:
        """Plan, dispatch, rescue and prune in the background, until `stop`."""
        await self.open()
        await self._runtime.start()

    async def stop(self) -> None:
        """Drain: what is running finishes and settles, what is only claimed is released."""
        await self._runtime.stop()

    async def run_forever(self) -> None:
        """`start`, wait for SIGINT or SIGTERM, `stop`."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (os_signal.SIGINT, os_signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, stopped.set)
        try:
            await self.start()
            await stopped.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

    # ---- handlers

    def handler(self, name: str | None = None) -> Callable[[Function], Function]:
        """Register a function, async or plain, under a name (left out: its own). Register before `start`."""

        def register(function: Function) -> Function:
            self.add_handler(name or function.__name__, function)
            return function

        return register

    def add_handler(self, name: str, function: HandlerFunction) -> None:
        """As the decorator `handler`. Raises InvalidJob for a name that is taken, or once the scheduler runs."""
        if self._runtime.running:
            raise InvalidJob(f"handler {name!r}: register handlers before the scheduler is started")
        if name in self._runtime.handlers:
            raise InvalidJob(f"handler {name!r} is registered already")
        self._runtime.handlers[name] = Handler(name, function)

    # ---- jobs

    async def add_job(
        self,
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
        targets = _targets(handler, args, http, queue, bus, payload, target)
        if len(targets) != 1:
            raise InvalidJob("target: give exactly one of handler, http, queue, bus and target", field="target")
        definition = {"name": name, "trigger": spec, "target": targets[0], **_builtins(fields)}
        job, _ = await self._operations.put_job(read_definition(definition))
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
        if not labels:
            raise InvalidRequest("labels: give at least one; deleting every job is not meant by an empty filter")
        deleted = 0
        while (page := await self.list_jobs(labels=labels)).items:
            for job in page.items:
                await self.delete_job(job.name)
                deleted += 1
        return deleted

    async def pause_job(self, name: str, reason: str | None = None) -> Job:
        """No later fire time runs until it is resumed."""
        return await self._operations.pause_job(name, reason)

    async def resume_job(self, name: str) -> Job:
        """Go on with the fire times from now on."""
        return await self._operations.resume_job(name)

    async def trigger_job(self, name: str, payload: Any = None, *, unique_key: str | None = None) -> Run:
        """A run now, under the job's overlap policy."""
        encoded = None if payload is None else _encode("payload", payload)
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
        """A one-off run of the handler `name`: now, at an instant, or after a delay (timedelta or seconds). With a
        `unique_key` that another run holds, that run is returned instead. With a `connection` of the caller's own (to
        the same database, where the store allows it: see its page) the run is added in the caller's transaction, and
        exists once that commits."""
        policy = _policy(retry, timeouts, retention)
        (run,) = self._one_offs(name, [args], at, delay, priority, unique_key, policy, _concurrency(concurrency))
        (added,) = await self._add_runs([run], connection)
        if not added and unique_key is not None:
            found = await self._runtime.store.get_run_by_key(unique_key)
            return found or run
        return run

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
        policy = _policy(retry, timeouts, retention)
        runs = self._one_offs(name, args, at, delay, priority, None, policy, _concurrency(concurrency))
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
        policy = _policy(retry, timeouts, retention)
        runs = self._one_offs(name, args, at, delay, priority, unique_key, policy, _concurrency(concurrency))
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

    def _one_offs(
        self,
        name: str,
        args: Sequence[Mapping[str, Any] | None],
        at: datetime | None,
        delay: timedelta | float | None,
        priority: int,
        unique_key: str | None,
        policy: RunPolicy | None,
        concurrency: Concurrency | None,
    ) -> list[Run]:
        now = self._runtime.clock.now()
        due_at = _due_at(now, at, delay)
        if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
            raise InvalidRequest(f"priority: must be from {PRIORITY_MIN} to {PRIORITY_MAX}", field="priority")
        timeouts = policy.timeouts if policy is not None else Timeouts()
        start_by = None if timeouts.start_seconds is None else due_at + to_micros(timeouts.start_seconds)
        ids = uuid7s(due_at, self._runtime.entropy(10), len(args))
        return [
            Run(
                id=run_id,
                queue=f"handler/{name}",
                fire_at=due_at,
                due_at=due_at,
                created_at=now,
                state=State.PENDING,
                priority=priority,
                cause=Cause.ENQUEUED,
                payload=None if given is None else _encode("args", given),
                policy=policy,
                unique_key=unique_key,
                concurrency_key=concurrency.key if concurrency else None,
                concurrency_max=concurrency.max if concurrency else 0,
                lease_seconds=timeouts.heartbeat_seconds,
                execution_seconds=timeouts.execution_seconds,
                start_by=start_by,
            )
            for run_id, given in zip(ids, args, strict=True)
        ]

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


def _targets(
    handler: str | None,
    args: Mapping[str, Any] | None,
    http: str | Mapping[str, Any] | None,
    queue: str | None,
    bus: str | None,
    payload: Any,
    target: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """The targets that were named; there should be one."""
    given: list[dict[str, Any]] = []
    if handler is not None:
        given.append({"type": "handler", "name": handler, "args": dict(args or {})})
    if http is not None:
        given.append({"type": "http", **({"url": http} if isinstance(http, str) else http)})
    if queue is not None:
        given.append({"type": "queue", "queue": queue, "payload": payload})
    if bus is not None:
        given.append({"type": "bus", "bus": bus, "payload": payload})
    if target is not None:
        given.append(dict(target))
    return given


def _builtins(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Policies may be given as structs, dicts or (catch_up, concurrency) as a bare word."""
    plain: dict[str, Any] = {name: _plain(value) for name, value in fields.items()}
    if isinstance(plain.get("catch_up"), str):
        plain["catch_up"] = {"policy": plain["catch_up"]}
    if isinstance(plain.get("concurrency"), str):
        plain["concurrency"] = {"key": plain["concurrency"]}
    return plain


def _plain(value: Any) -> Any:
    return value if isinstance(value, datetime) else msgspec.to_builtins(value)


def _encode(field: str, value: Any) -> bytes:
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{field}: can't be written as JSON: {error}", field=field) from None
    if len(text) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are kept", field=field)
    return text


def _policy(
    retry: Retry | Mapping[str, Any] | None,
    timeouts: Timeouts | Mapping[str, Any] | None,
    retention: Retention | Mapping[str, Any] | None,
) -> RunPolicy | None:
    """The policies of one-off runs; None where all are the defaults."""
    given = {"retry": retry, "timeouts": timeouts, "retention": retention}
    given = {name: msgspec.to_builtins(value) for name, value in given.items() if value is not None}
    if not given:
        return None
    try:
        return msgspec.convert(given, RunPolicy)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _concurrency(given: Concurrency | Mapping[str, Any] | None) -> Concurrency | None:
    return msgspec.convert(msgspec.to_builtins(given), Concurrency) if given is not None else None


def _due_at(now: Instant, at: datetime | None, delay: timedelta | float | None) -> Instant:
    if at is not None and delay is not None:
        raise InvalidRequest("give `at` or `delay`, not both", field="delay")
    if at is not None:
        return to_instant(at)
    if delay is None:
        return now
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds <= 10 * 366 * 86_400:
        raise InvalidRequest(f"delay: must be from 0 s to ten years, not {seconds:g} s", field="delay")
    return now + to_micros(seconds)
