"""The way back from a bus: statuses and heartbeats of workers become settled runs and renewed leases.

A report is acknowledged only after the store has written it, and given back when the store can't. Who wrote it is not
known and not trusted: only what names a run of this bus, of that job, claimed under the token that it echoes (or under
any, where it echoes none: see `late_ends`) changes anything.

The rest is counted: `malformed` and `foreign` ones are rejected and never seen again, `stale` ones (the run is no
longer theirs) and `duplicate` ones are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from horarium.clock import Clock, Instant
from horarium.delivery.bus import name_on_bus
from horarium.errors import BusUnavailable, Conflict, HorariumError, NotFound, StoreUnavailable
from horarium.model import CLAIMED, Cancelled, Failed, Run, RunChange, State, Succeeded, awaits_worker
from horarium.operations.settling.settling import Settlement
from horarium.ports import BATCH_MAX, JOBS, Beat, Bus, Report, Store
from horarium.rules.settling import begin, heard_at
from horarium.rules.unbegun import was_put_back
from horarium.services.buses.bus_jobs import BusJobs
from horarium.services.buses.bus_reports import Reading, read
from horarium.services.buses.late_ends import LateEnds
from horarium.services.loop.quiet import QuietLog
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry


class Discards:
    """The reports of one bus that were refused or dropped: counted, and written to the log a few a second."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._refused = QuietLog("messages rejected")
        self._dropped = QuietLog("late reports")

    def tell_rest(self, now: Instant) -> None:
        self._refused.tell_rest(now)
        self._dropped.tell_rest(now)

    def drop(self, reading: Reading, run: Run) -> None:
        """A report on a run that is no longer its sender's, or that says nothing new."""
        if _says_again(reading, run):
            self._telemetry.reported("duplicate")
            return
        self._telemetry.reported("stale")
        self._telemetry.lease_lost()
        self._dropped.write(
            self._clock.now(),
            "run %s: a late report (%s, token %s) changed nothing; the run is %s under token %d",
            run.id,
            type(reading.outcome).__name__.lower() if reading.outcome is not None else "heartbeat",
            reading.token,
            run.state,
            run.token,
        )

    def refuse(self, report: Report, outcome: str, why: str) -> None:
        """A report that is `malformed` or `foreign`."""
        self._telemetry.reported(outcome)
        message = "a %s message on job %r %s; it is rejected: %.200r"
        self._refused.write(self._clock.now(), message, report.kind, report.job, why, report.body[:200])


def _says_again(reading: Reading, run: Run) -> bool:
    """Whether the run ended as this report says."""
    if reading.token not in (None, run.token):
        return False
    match reading.outcome:
        case Succeeded():
            return run.state is State.COMPLETED
        case Failed():
            return run.state is State.FAILED
        case Cancelled():
            return run.state is State.CANCELLED
        case _:
            return run.finished


STOPPED = frozenset({State.CANCELLED, State.FAILED})
"""A worker that begins or goes on with such a run is told to stop."""
STEPS_MAX = 20
"""Batches of reports in one step."""

Settle = Callable[[Sequence[Settlement]], Awaitable[Sequence[Run | HorariumError]]]

log = logging.getLogger("horarium")


class Reports(Service):
    """Consumes the reports that come in on one bus."""

    topics = (JOBS,)

    def __init__(
        self,
        name: str,
        bus: Bus,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
        settle: Settle,
        cancel_asked: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.name = f"reports-{name}"
        self._queue = f"bus/{name}"
        self._bus = bus
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._settle = settle
        self._jobs = BusJobs(name, store, clock)
        self._late_ends = LateEnds()
        self._discards = Discards(clock, telemetry)
        self.wake = Wake()
        self._cancel_asked = cancel_asked

    def signalled(self) -> None:
        """A job was defined, changed or deleted."""
        self._jobs.signalled()

    async def step(self, now: Instant) -> Instant | None:
        self._discards.tell_rest(now)
        for _ in range(STEPS_MAX):
            reports = self._bus.take(BATCH_MAX)
            if not reports:
                break
            await self._handle(reports)
        else:
            return now
        if ripe := self._late_ends.take_ripe(now):
            await self._handle(ripe, decide=True)
        await self._list_jobs(now)
        if self._bus.problem is not None:
            raise BusUnavailable(self._bus.problem)
        return self._late_ends.next_at

    async def _list_jobs(self, now: Instant) -> None:
        jobs = await self._jobs.look(now)
        if jobs is not None:
            self._late_ends.forget_all_but(jobs)
            self._bus.listen(jobs)

    # ---- received reports

    async def _handle(self, reports: Sequence[Report], decide: bool = False) -> None:
        """Write these, and acknowledge written ones. Gives all of them back if the store can't write."""
        try:
            await self._write(reports, decide)
        except StoreUnavailable:
            await self._bus.nack(reports)
            raise
        except Exception:
            if len(reports) > 1:
                for report in reports:
                    await self._handle([report], decide)
                return
            # One that breaks us must not come again and again.
            log.exception("a report on job %r could not be dealt with; it is rejected", reports[0].job)
            self._telemetry.reported("error")
            await self._bus.reject(reports)

    async def _write(self, reports: Sequence[Report], decide: bool) -> None:
        readings = [reading for reading in map(read, reports) if reading is not None]
        understood = {id(reading.report) for reading in readings}
        refused = [report for report in reports if id(report) not in understood]
        for report in refused:
            self._discards.refuse(report, "malformed", "can't be read")
        runs = await self._runs_of(readings)
        beats: list[tuple[Reading, Run]] = []
        ends: list[tuple[Reading, Run]] = []
        done: list[Report] = []
        kept: list[Report] = []
        alive = {reading.run_id for reading in readings if reading.outcome is None}
        for reading in readings:
            run = runs.get(reading.run_id)
            if run is None or run.queue != self._queue or {reading.job, reading.report.job} != {name_on_bus(run)}:
                refused.append(reading.report)
                self._discards.refuse(
                    reading.report, "foreign", f"names run {reading.run_id[:50]!r}, which is none of this job"
                )
                continue
            if not decide and self._late_ends.is_late(reading, run, alive):
                kept.append(reading.report)
                continue
            done.append(reading.report)
            if reading.outcome is not None and reading.token == run.token and was_put_back(run):
                ends.append((reading, run))
            elif run.state not in CLAIMED or reading.token not in (None, run.token):
                self._discards.drop(reading, run)
                if reading.outcome is None and run.state in STOPPED:
                    self._cancel_asked(run)
            elif self._late_ends.is_late(reading, run, alive):
                self._late_ends.doubt(run)
                self._discards.drop(reading, run)
            else:
                (beats if reading.outcome is None else ends).append((reading, run))
        await self._beat(beats)
        await self._end(ends)
        for report in kept:  # not sooner: in an outage all are given back
            self._late_ends.keep(report, self._clock.now())
        await self._bus.ack(done)
        await self._bus.reject(refused)

    async def _runs_of(self, readings: Sequence[Reading]) -> dict[str, Run]:
        ids = list({reading.run_id for reading in readings})
        runs = await self._store.get_runs(ids) if ids else []
        return {run.id: run for run in runs if run is not None}

    async def _beat(self, beats: Sequence[tuple[Reading, Run]]) -> None:
        """Renew leases; the last progress of each counts."""
        beats = await self._begin(beats)
        if not beats:
            return
        by_instant: dict[Instant, list[tuple[Reading, Run]]] = {}
        steady = self._clock.steady()
        for reading, run in beats:
            by_instant.setdefault(heard_at(run, steady), []).append((reading, run))
        for instant, heard in by_instant.items():
            sent = [Beat(run.id, run.token, reading.progress) for reading, run in heard]
            pulses = await self._store.heartbeat_runs(sent, instant)
            for (reading, run), pulse in zip(heard, pulses, strict=True):
                if pulse is None:
                    self._discards.drop(reading, run)
                    continue
                self._telemetry.reported("written")
                if pulse.cancel_requested:
                    self._cancel_asked(run)

    async def _begin(self, beats: Sequence[tuple[Reading, Run]]) -> Sequence[tuple[Reading, Run]]:
        """Write that these runs have begun of which no worker was heard before. Those that are left to be renewed."""
        now, steady = self._clock.now(), self._clock.steady()
        progress = {run.id: reading.progress for reading, run in beats if reading.progress is not None}
        first = {run.id: run for _, run in beats if awaits_worker(run)}
        if not first:
            return beats
        begun = [begin(run, now, steady, progress.get(run.id)) for run in first.values()]
        changes = [RunChange(run, run.token, State.RUNNING) for run in begun]
        written = await self._store.settle_runs(changes, steady)
        done = {run.id for run, did in zip(begun, written, strict=True) if did}
        for _, run in beats:
            if run.id in done:
                self._telemetry.reported("written")
        return [(reading, run) for reading, run in beats if run.id not in done]

    async def _end(self, ends: Sequence[tuple[Reading, Run]]) -> None:
        """Settle: the first of each run. One that lost its lease meanwhile, or says more, changes nothing."""
        first: dict[str, tuple[Reading, Run]] = {}
        rest = [(reading, run) for reading, run in ends if first.setdefault(run.id, (reading, run))[0] is not reading]
        settlements = [
            Settlement(run.id, run.token, reading.outcome)
            for reading, run in first.values()
            if reading.outcome is not None
        ]
        answers = await self._settle(settlements) if settlements else []
        settled: dict[str, Run] = {}
        for (reading, run), answer in zip(first.values(), answers, strict=True):
            if isinstance(answer, Run):
                settled[run.id] = answer
                self._telemetry.reported("written")
            elif isinstance(answer, Conflict | NotFound):
                rest.append((reading, run))
            else:
                raise answer
        current = settled | await self._runs_of([reading for reading, run in rest if run.id not in settled])
        for reading, run in rest:
            self._discards.drop(reading, current.get(run.id, run))
