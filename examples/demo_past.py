"""The past of the demonstration: a few dozen jobs, and the runs that they would have had by now.

The jobs are put, changed and paused through the same operations as in life, by a clock that stands in the past. Each
run is made by the rules that plan and settle runs, and written to the store as it ended. So everything that a page
shows of them is what it would show of runs that really were.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.access.acting import acting
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_micros
from horarium.model import Cause, Disposition, Job, Node, Plan, Run, RunChange, State, uuid7
from horarium.model.channels import AppriseChannel, EmailChannel, WebhookChannel
from horarium.model.health import health_after
from horarium.model.logs import LogLine
from horarium.model.outcomes import Failed, Succeeded
from horarium.model.records import Record, RecordChange, instant_key
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.ports import BATCH_MAX
from horarium.rules.overridden import Dropped
from horarium.rules.planning import dropped_run, next_fire, owed_run
from horarium.rules.settling import settle
from horarium.rules.windows import fires_in_window
from horarium.services.metrics.tallies import LATENESS_EDGES, PREFIX, Minute
from horarium.stores.wakeups import LocalSignal
from horarium.wire.definitions import read_definition

BEGAN = 45 * DAY
RUNS_OF_A_JOB = 60
FAILING = "invoice-export"
UNSERVED = "thumbnails-render"
OUTAGE = (6 * HOUR + 20 * MINUTE, 5 * HOUR + 55 * MINUTE)
"""How long ago the server was away, and came back."""
BERLIN = "Europe/Berlin"
TRACE = """Traceback (most recent call last):
  File "/srv/billing/export.py", line 88, in run
    rows = [row_of(invoice) for invoice in ledger.closed(since)]
  File "/srv/billing/export.py", line 41, in row_of
    return Row(invoice.number, invoice.total, rates[invoice.currency])
KeyError: 'XDR'
"""


@dataclass(frozen=True)
class Sample:
    """A job of the demonstration. `rule`: cron, or a phrase. `queue`: pulled by a worker; else its target is a URL.
    `seconds`: how long it usually takes; `fails`: of how many runs one fails; `retries`: of how many one needs more
    than one attempt. `error`: what it fails with."""

    name: str
    rule: str
    seconds: float
    team: str
    queue: str = ""
    zone: str = BERLIN
    fails: int = 0
    retries: int = 0
    error: str = "503 Service Unavailable: the upstream is busy"
    more: dict[str, Any] = field(default_factory=dict)


SAMPLES = (
    Sample("orders-sync", "*/5 * * * *", 1.2, "shop", retries=40),
    Sample("inventory-refresh", "*/10 * * * *", 3.4, "shop", retries=30),
    Sample("health-probe-eu", "* * * * *", 0.04, "platform", zone="UTC", fails=400),
    Sample("health-probe-us", "* * * * *", 0.12, "platform", zone="UTC", fails=700),
    Sample("search-index-incremental", "*/2 * * * *", 9, "search", more={"overlap": "skip"}),
    Sample("search-index-rebuild", "0 1 * * *", 1_460, "search", fails=20),
    Sample("session-cleanup", "*/15 * * * *", 0.7, "platform"),
    Sample("fraud-score-batch", "7,27,47 * * * *", 41, "risk", queue="scoring", retries=9),
    Sample("email-digest-daily", "0 7 * * *", 95, "growth", retries=12),
    Sample("email-digest-weekly", "0 8 * * mon", 410, "growth"),
    Sample(FAILING, "15 * * * *", 12, "billing", fails=50, error="KeyError: 'XDR'",
           more={"on": {"failed": [{"notify": "billing-mail", "after": 2}],
                        "recovered": [{"notify": "billing-mail"}]}}),
    Sample("invoice-dunning", "0 9 * * mon-fri", 64, "billing"),
    Sample("currency-rates", "0 * * * *", 0.9, "billing", retries=6, error="timed out after 10 s"),
    Sample("payroll-close", "0 18 25 * *", 300, "billing"),
    Sample("report-revenue-daily", "30 6 * * mon-fri", 22, "finance", fails=14,
           error="ValueError: no price for SKU 11830"),
    Sample("report-revenue-monthly", "0 6 1 * *", 190, "finance"),
    Sample("sla-report", "last weekday of the month at 5pm", 48, "finance"),
    Sample("backup-postgres-main", "0 2 * * *", 742, "platform", more={"title": "Base backup of the main database",
           "on": {"completed": [{"trigger": "backup-verify"}], "failed": [{"notify": "on-call"}]}}),
    Sample("backup-postgres-analytics", "30 2 * * *", 1_310, "platform", fails=11,
           error="pg_basebackup: no space left"),
    Sample("backup-object-store", "0 3 * * sun", 5_400, "platform"),
    Sample("backup-verify", "45 4 * * *", 133, "platform"),
    Sample("certificate-renewal", "0 4 1,15 * *", 6, "platform", zone="UTC"),
    Sample("data-retention-purge", "0 3 * * sun", 880, "platform"),
    Sample("log-rotation", "0 0 * * *", 2.1, "platform", zone="UTC"),
    Sample("cache-warm-storefront", "0 5-22 * * *", 17, "shop", zone="America/New_York"),
    Sample("feed-import-supplier-north", "20 */2 * * *", 31, "supply", retries=15),
    Sample("feed-import-supplier-south", "40 */2 * * *", 28, "supply", retries=15),
    Sample("feed-import-supplier-warehouse-replication-ap-southeast-2", "50 */3 * * *", 77, "supply", fails=9),
    Sample("webhook-retry-sweep", "*/30 * * * *", 1.6, "platform"),
    Sample("warehouse-stocktake", "every 2 weeks on saturday at 6am", 2_300, "supply"),
    Sample(UNSERVED, "*/15 * * * *", 7.5, "media", queue="gpu"),
    Sample("transcode-backlog", "10 */4 * * *", 260, "media", queue="media", retries=7,
           error="lost contact with encoder"),
    Sample("recommendations-train", "0 4 * * *", 3_900, "media", queue="media"),
    Sample("newsletter-send", "0 10 * * tue,thu", 120, "growth"),
    Sample("crm-export", "30 5 * * *", 35, "growth"),
    Sample("etl-clickstream", "30 2 * * *", 505, "data", retries=10),
    Sample("etl-warehouse-load", "15 3 * * *", 950, "data", fails=16, error="DeadlockDetected on table facts_daily"),
    Sample("quality-checks", "0 8,12,16 * * mon-fri", 14, "data"),
)  # fmt: skip


class PastClock:
    """Stands where it is put."""

    machine = "here"
    steady_offset = 0

    def __init__(self, at: Instant) -> None:
        self.at = at

    def now(self) -> Instant:
        return self.at

    def monotonic(self) -> float:
        return self.at / SECOND

    def steady(self) -> Instant:
        return self.now()


class Past:
    """Writes the past of one store. `now`: the present; `base`: where its HTTP targets answer."""

    def __init__(self, store: Any, now: Instant, base: str) -> None:
        self._store = store
        self._now = now
        self._base = base
        self._clock = PastClock(now - BEGAN)
        self._operations = Operations(store, self._clock, LocalSignal(), os.urandom, lambda target: None)
        self._chance = random.Random(7)
        self._minutes: dict[Instant, Minute] = {}
        self._ended: list[RunChange] = []

    async def write(self) -> None:
        """All of it."""
        await self._put_jobs()
        await self._change()
        for sample in SAMPLES:
            await self._write_runs(sample)
        await self._write_minutes()
        await self._say()
        await self._store.add_health(health_after(self._ended))
        await self._nodes()
        await self._stand([sample.name for sample in SAMPLES], self._now)

    # ---- what people did

    def _by(self, who: str, ago: Instant) -> Any:
        self._clock.at = self._now - ago
        kind = "oidc" if "@" in who else "key"
        who_is = principal(who if kind == "oidc" else f"key:{who}", who, kind, [Role.ADMIN])  # type: ignore[arg-type]
        request_id = uuid7(self._clock.at, self._chance.randbytes(10))
        return acting(Origin(principal=who_is, request_id=request_id, address="10.20.0.14"))

    def _definition(self, sample: Sample) -> dict[str, Any]:
        plain = sample.rule[0].isdigit() or sample.rule[0] == "*"
        cron = {"type": "cron", "expression": sample.rule, "timezone": sample.zone}
        phrase = {"type": "phrase", "text": sample.rule, "timezone": sample.zone}
        url = {"type": "http", "url": f"{self._base}/{sample.name}", "headers": {"Authorization": "Bearer s3cr3t"}}
        return {
            "name": sample.name,
            "trigger": cron if plain else phrase,
            "target": {"type": "queue", "queue": sample.queue} if sample.queue else url,
            "labels": {"team": sample.team},
            "retention": {"finished_seconds": 90 * 86_400},
            **sample.more,
        }

    async def _put_jobs(self) -> None:
        channels = self._operations.channels
        with self._by("ops@example.com", BEGAN):
            await channels.put("on-call", WebhookChannel(url=f"{self._base}/news/on-call", system=True))
            await channels.put("billing-mail", EmailChannel(to=("billing@example.com",), system=False))
            await channels.put("team-chat", AppriseChannel(url="mailtos://bot:key@example.com", system=False))
        with self._by("deploy", BEGAN):
            definitions = [read_definition(self._definition(sample)) for sample in SAMPLES]
            await self._operations.importing.put_jobs(definitions)

    async def _change(self) -> None:
        jobs = self._operations.jobs
        patches: list[tuple[str, Instant, str, dict[str, Any]]] = [
            ("billing@example.com", 12 * DAY, FAILING, {"retry": {"attempts_max": 2, "backoff_seconds": 30}}),
            ("data-team", 9 * DAY, "etl-clickstream", {"timeouts": {"execution_seconds": 3_600}}),
            ("deploy", 6 * DAY, "orders-sync", {"jitter_seconds": 5, "labels": {"team": "shop", "tier": "1"}}),
            ("billing@example.com", 5 * HOUR, FAILING, {"timeouts": {"execution_seconds": 300}, "priority": 5}),
        ]
        pauses = (
            (3 * DAY + 2 * HOUR, "newsletter-send", "templates are being moved, back on Thursday"),
            (26 * HOUR, "crm-export", "the vendor migrates its API"),
        )
        for who, ago, name, fields in patches:
            await self._stand([name], self._now - ago)
            with self._by(who, ago):
                await jobs.patch_job(name, fields)
        for ago, name, reason in pauses:
            await self._stand([name], self._now - ago)
            with self._by("ops@example.com", ago):
                await jobs.pause_job(name, reason)

    # ---- runs

    async def _write_runs(self, sample: Sample) -> None:
        job = await self._operations.jobs.get_job(sample.name)
        fires = fires_in_window(job, self._now - DAY - HOUR, self._now - 1, 2_000)
        if len(fires) < RUNS_OF_A_JOB:
            fires = fires_in_window(job, self._now - BEGAN, self._now - 1, 2_000)[-RUNS_OF_A_JOB:]
        runs = [run for fire in fires if (run := self._run_of(job, sample, fire)) is not None]
        if sample.name == UNSERVED:
            runs[-2:] = [owed_run(job, fire, fire, Cause.SCHEDULE) for fire in fires[-2:]]
        for start in range(0, len(runs), BATCH_MAX):
            await self._store.add_runs(runs[start : start + BATCH_MAX])
        self._ended += [RunChange(run, run.token, State.RUNNING) for run in runs]
        for run in runs:
            self._count(run)
        if sample.queue or sample.name == FAILING:
            for run in runs[-5:]:
                await self._log(run, sample)

    def _run_of(self, job: Job, sample: Sample, fire: Instant) -> Run | None:
        ago = self._now - fire
        if OUTAGE[0] >= ago > OUTAGE[1] and not sample.queue:
            lost = Dropped(fire, fire, 1, Disposition.MISSED, "no node was up until 60 s after it was due")
            return dropped_run(job, lost, self._now - OUTAGE[1])
        if job.paused_at is not None and fire > job.paused_at:
            return None
        if job.overlap == "skip" and self._chance.random() < 0.02:
            skipped = Dropped(fire, fire, 1, Disposition.SKIPPED_OVERLAP, "the run before was not finished")
            return dropped_run(job, skipped, fire)
        broken = sample.name == FAILING and ago < 5 * HOUR
        fails = broken or (sample.fails and self._chance.randrange(sample.fails) == 0)
        attempts = job.retry.attempts_max if fails else 1
        if not fails and sample.retries and self._chance.randrange(sample.retries) == 0:
            attempts = 2
        return self._performed(job, sample, owed_run(job, fire, fire, Cause.SCHEDULE), attempts, fails=bool(fails))

    def _performed(self, job: Job, sample: Sample, run: Run, attempts: int, *, fails: bool) -> Run:
        """The run after its attempts. It goes on if it would end after the present."""
        at = run.due_at
        for attempt in range(1, attempts + 1):
            slow = self._chance.lognormvariate(-4.6, 1.1)
            at += to_micros(min(slow, 4)) + 1_000
            worker = f"{sample.queue or 'node'}-{'ab'[self._chance.randrange(2)]}1"
            lease = at + to_micros(run.lease_seconds)
            run = replace(run, state=State.RUNNING, token=run.token + 1, attempt=attempt, worker=worker,
                          started_at=at, lease_expires_at=lease)  # fmt: skip
            took = to_micros(sample.seconds * self._chance.lognormvariate(0, 0.18))
            last = attempt == attempts
            end = at + (took if last and not fails else took // 3 + 1)
            if end >= self._now:
                return replace(run, started_at=at, lease_expires_at=self._now + 4 * SECOND)
            if last and not fails:
                return settle(run, job, Succeeded(_result(sample, self._chance)), end)
            trace = TRACE if sample.name == FAILING else None
            run = settle(run, job, Failed(sample.error, trace=trace), end)
            at = run.due_at
        return run

    async def _log(self, run: Run, sample: Sample) -> None:
        if run.started_at is None:
            return
        begin, end = run.started_at, run.finished_at or self._now
        lines = [LogLine(begin + 4_000, "stdout", f"{sample.name}: attempt {run.attempt} begins")]
        for step in range(1, 8):
            at = begin + (end - begin) * step // 8
            lines.append(LogLine(at, "stdout", f"{step * 125:,} of 1,000 items done, {step % 3} skipped"))
        if run.state is State.FAILED:
            lines.append(LogLine(end, "stderr", f"no rate for the invoice 2026-{run.attempt:04d}: {run.error}"))
        await self._operations.logs.append(run, lines)

    def _count(self, run: Run) -> None:
        """What the node that did this would have counted."""
        since = self._now - DAY - HOUR
        if run.finished_at is not None and run.finished_at >= since:
            minute = self._minutes.setdefault(run.finished_at - run.finished_at % MINUTE, Minute())
            if run.state is State.COMPLETED:
                minute.completed += 1
            elif run.state is State.FAILED:
                minute.failed += 1
            elif run.disposition is Disposition.MISSED:
                minute.missed += 1
        if run.started_at is not None and run.started_at >= since and run.attempt == 1:
            counts = self._minutes.setdefault(run.started_at - run.started_at % MINUTE, Minute()).lateness
            place = bisect_left(LATENESS_EDGES, run.started_at - run.due_at)
            counts[place] = counts.get(place, 0) + 1

    async def _write_minutes(self) -> None:
        changes = [
            RecordChange(Record(name=PREFIX + instant_key(minute, "past/1"), body=msgspec.json.encode(counted)))
            for minute, counted in self._minutes.items()
        ]
        for start in range(0, len(changes), BATCH_MAX):
            await self._store.put_records(changes[start : start + BATCH_MAX])

    # ---- the rest

    async def _say(self) -> None:
        """Runs that people asked for."""
        with self._by("billing@example.com", 40 * MINUTE):
            job = await self._operations.jobs.get_job(FAILING)
            asked = owed_run(
                job, self._clock.at, self._clock.at, Cause.MANUAL, b'{"since":"2026-11-01","currency":"EUR"}'
            )
            sample = next(sample for sample in SAMPLES if sample.name == FAILING)
            run = self._performed(job, sample, asked, 2, fails=True)
            await self._store.add_runs([run])
            self._ended.append(RunChange(run, run.token, State.RUNNING))

    async def _nodes(self) -> None:
        begun = self._now - 2 * DAY
        roles = ("api", "planner", "dispatcher", "rescuer", "pruner")
        for name, silent, stopped in (("node-a1", 6 * MINUTE, False), ("node-b1", 3 * HOUR, True)):
            beat = self._now - silent
            await self._store.beat_node(
                Node(name=name, roles=roles, started_at=begun, beat_at=beat, host=name, pid=2_114, version="0.1.0",
                     stopped_at=beat if stopped else None)
            )  # fmt: skip

    async def _stand(self, names: Sequence[str], at: Instant) -> None:
        """These jobs stand there: what was, was; they go on from then."""
        jobs = [await self._operations.jobs.get_job(name) for name in names]
        plans = [Plan(replace(job, planned_until=at, next_fire_at=next_fire(job, at))) for job in jobs if job.enabled]
        await self._store.commit_plans(plans, at)


def _result(sample: Sample, chance: random.Random) -> bytes:
    return msgspec.json.encode({"items": chance.randrange(40, 4_000), "skipped": chance.randrange(3)})


async def write_past(database: Path, now: Instant, base: str) -> int:
    """Fill a SQLite file. The number of jobs."""
    store = make_store(f"sqlite:///{database}")
    await store.open()
    try:
        await Past(store, now, base).write()
    finally:
        await store.close()
    return len(SAMPLES)
