"""The way back from a bus: statuses and heartbeats of workers become settled runs and renewed leases.

A report is acknowledged only after the store has written it, and given back when the store can't. Who wrote it is not
known and not trusted: only what names a run of this bus, of that job, claimed under the token that it echoes (or under
any, where it echoes none) changes anything.

An end without a token, of a run whose last worker fell silent, counts only after the present attempt was heard of
(`running`, or a heartbeat): until then it is the silent one that speaks. It is kept for a moment, since another node
may have the sign of life at hand. Workers that never say `running` are known by the runs that they end; and what is
said again, under yet another attempt, counts.

The rest is counted: `malformed` and `foreign` ones are rejected and never seen again, `stale` ones (the run is no
longer theirs) and `duplicate` ones are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from horarium.clock import HOUR, SECOND, Clock, Instant, to_micros
from horarium.errors import BusUnavailable, Conflict, HorariumError, NotFound, StoreUnavailable
from horarium.model import CLAIMED, BusTarget, Cancelled, Failed, Outcome, Run, State, Succeeded
from horarium.ports import BATCH_MAX, PAGE_MAX, Beat, Bus, JobFilter, Report, Store
from horarium.services.bus_reports import Reading, after_silence, heard, read
from horarium.services.quiet import QuietLog
from horarium.telemetry import Telemetry

LIST_SECONDS = 60.0
"""How often the jobs of a bus are looked up."""
LIST_SECONDS_MIN = 5.0
"""Not more often than this, however often jobs change."""
FORGET_AFTER = HOUR
"""How long the reports of a job that was deleted are still taken."""
DOUBT = SECOND
"""How long an end that may be a late one is kept."""
DOUBTED_MAX = 1_000
"""Runs of which late ends are remembered."""
STEPS_MAX = 20
"""Batches of reports in one step."""

Claim = tuple[str, int, Outcome]
"""Run, token, outcome: what `settle` takes."""
Settle = Callable[[Sequence[Claim]], Awaitable[Sequence[Run | HorariumError]]]

log = logging.getLogger("horarium")


class Reports:
    """Consumes the reports that come in on one bus."""

    topics: tuple[str, ...] = ("jobs",)

    def __init__(self, name: str, bus: Bus, store: Store, clock: Clock, telemetry: Telemetry, settle: Settle) -> None:
        self.name = f"reports-{name}"
        self._queue = f"bus/{name}"
        self._bus_name = name
        self._bus = bus
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._settle = settle
        self._jobs: dict[str, Instant] = {}
        self._listed_at: Instant | None = None
        self._jobs_changed = False
        self._curt: set[str] = set()
        self._doubted: dict[str, int] = {}
        self._kept: list[tuple[Report, Instant]] = []
        self._refused = QuietLog("messages rejected")
        self._dropped = QuietLog("late reports")
        self.wake: Callable[[], None] = lambda: None
        self.cancel_asked: Callable[[Run], None] = lambda run: None

    def signalled(self) -> None:
        """A job was defined, changed or deleted."""
        self._jobs_changed = True

    async def step(self, now: Instant) -> Instant | None:
        self._refused.tell_rest(now)
        self._dropped.tell_rest(now)
        for _ in range(STEPS_MAX):
            reports = self._bus.take(BATCH_MAX)
            if not reports:
                break
            await self._handle(reports)
        else:
            return now
        await self._decide(now)
        await self._list_jobs(now)
        if self._bus.problem is not None:
            raise BusUnavailable(self._bus.problem)
        return min((until for _, until in self._kept), default=None)

    async def _decide(self, now: Instant) -> None:
        """Deal with the ends that were kept for long enough."""
        ripe = [report for report, until in self._kept if not now < until <= now + DOUBT]
        if ripe:
            self._kept = [(report, until) for report, until in self._kept if now < until <= now + DOUBT]
            await self._handle(ripe, decide=True)

    # ---- which jobs

    async def _list_jobs(self, now: Instant) -> None:
        """Look up which jobs go to this bus, now and then."""
        if self._listed_at is not None:
            pause = LIST_SECONDS_MIN if self._jobs_changed else LIST_SECONDS
            if self._listed_at <= now < self._listed_at + to_micros(pause):
                return
        self._jobs_changed = False
        after: str | None = None
        while True:
            page = await self._store.list_jobs(JobFilter(), after, PAGE_MAX)
            for job in page.items:
                if isinstance(job.target, BusTarget) and job.target.bus == self._bus_name:
                    self._jobs[job.name] = now
            after = page.next_after
            if after is None:
                break
        self._listed_at = now
        self._jobs = {name: at for name, at in self._jobs.items() if at + FORGET_AFTER > now}
        self._curt &= self._jobs.keys()
        self._bus.listen(self._jobs)

    # ---- what came in

    async def _handle(self, reports: Sequence[Report], decide: bool = False) -> None:
        """Write these, and acknowledge what was written. Gives all of them back if the store can't write."""
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
            self._refuse(report, "malformed", "can't be read")
        runs = await self._runs_of(readings)
        beats: list[tuple[Reading, Run]] = []
        ends: list[tuple[Reading, Run]] = []
        done: list[Report] = []
        alive = {reading.run_id for reading in readings if reading.outcome is None}
        for reading in readings:
            run = runs.get(reading.run_id)
            if run is None or run.queue != self._queue or run.job != reading.job or run.job != reading.report.job:
                refused.append(reading.report)
                self._refuse(reading.report, "foreign", f"names run {reading.run_id[:50]!r}, which is none of this job")
                continue
            if not decide and self._late(reading, run, alive):
                self._kept.append((reading.report, self._clock.now() + DOUBT))
                continue
            done.append(reading.report)
            if run.state not in CLAIMED or reading.token not in (None, run.token):
                self._drop(reading, run)
            elif self._late(reading, run, alive):
                self._doubt(run)
                self._drop(reading, run)
            else:
                (beats if reading.outcome is None else ends).append((reading, run))
        await self._beat(beats)
        await self._end(ends)
        await self._bus.ack(done)
        await self._bus.reject(refused)

    def _late(self, reading: Reading, run: Run, alive: set[str]) -> bool:
        """Whether this end is that of the worker that fell silent, as far as can be told."""
        if reading.outcome is None or reading.token is not None or run.state is not State.RUNNING:
            return False
        known = heard(run) or run.id in alive
        if after_silence(run):
            said_before = self._doubted.get(run.id, run.token) < run.token
            return not (known or said_before or reading.job in self._curt)
        if known:
            self._curt.discard(reading.job)
        else:
            self._curt.add(reading.job)
        return False

    def _doubt(self, run: Run) -> None:
        self._doubted[run.id] = run.token
        if len(self._doubted) > DOUBTED_MAX:
            del self._doubted[next(iter(self._doubted))]

    async def _runs_of(self, readings: Sequence[Reading]) -> dict[str, Run]:
        ids = list({reading.run_id for reading in readings})
        runs = await self._store.get_runs(ids) if ids else []
        return {run.id: run for run in runs if run is not None}

    async def _beat(self, beats: Sequence[tuple[Reading, Run]]) -> None:
        """Renew leases; the last progress of each counts."""
        if not beats:
            return
        sent = [Beat(run.id, run.token, reading.progress) for reading, run in beats]
        pulses = await self._store.heartbeat_runs(sent, self._clock.now())
        for (reading, run), pulse in zip(beats, pulses, strict=True):
            if pulse is None:
                self._drop(reading, run)
                continue
            self._telemetry.reported("written")
            if pulse.cancel_requested:
                self.cancel_asked(run)

    async def _end(self, ends: Sequence[tuple[Reading, Run]]) -> None:
        """Settle: the first of each run. One that lost its lease meanwhile, or says more, changes nothing."""
        first: dict[str, tuple[Reading, Run]] = {}
        rest = [(reading, run) for reading, run in ends if first.setdefault(run.id, (reading, run))[0] is not reading]
        claims = [
            (run.id, run.token, reading.outcome) for reading, run in first.values() if reading.outcome is not None
        ]
        answers = await self._settle(claims) if claims else []
        settled: dict[str, Run] = {}
        for (reading, run), answer in zip(first.values(), answers, strict=True):
            if isinstance(answer, Run):
                settled[run.id] = answer
                self._telemetry.reported("written")
            elif isinstance(answer, Conflict | NotFound):
                rest.append((reading, run))
            else:
                raise answer
        stand = settled | await self._runs_of([reading for reading, run in rest if run.id not in settled])
        for reading, run in rest:
            self._drop(reading, stand.get(run.id, run))

    def _drop(self, reading: Reading, run: Run) -> None:
        """A report that changes nothing."""
        if _says_again(reading, run):
            self._telemetry.reported("duplicate")
            return
        self._telemetry.reported("stale")
        self._telemetry.lease_lost()
        self._dropped.warning(
            self._clock.now(),
            "run %s: a late report (%s, token %s) changed nothing; the run is %s under token %d",
            run.id,
            type(reading.outcome).__name__.lower() if reading.outcome is not None else "heartbeat",
            reading.token,
            run.state,
            run.token,
        )

    def _refuse(self, report: Report, outcome: str, why: str) -> None:
        self._telemetry.reported(outcome)
        message = "a %s message on job %r %s; it is rejected: %.200r"
        self._refused.warning(self._clock.now(), message, report.kind, report.job, why, report.body[:200])


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
