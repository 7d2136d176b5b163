"""Metrics of each job: how its runs ended, how long they took, and when it last succeeded.

The number of jobs shown is bounded: the first `jobs_max` that are known here have series of their own, runs of all
others are counted under `job="_other"`, which no job can be called. Text is made once for each change of a job's
figures, so that a scrape of a thousand jobs holds up nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from horarium.clock import SECOND, Instant
from horarium.model import UNFINISHED, Disposition, Health, State
from horarium.operations.bounds.listing import Slices
from horarium.services.metrics.ends import End

JOBS_MAX_DEFAULT = 1_000
OTHER = "_other"
DURATION_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400)
"""Upper bounds in seconds."""

LAST_SUCCESS = "horarium_job_last_success_timestamp_seconds"
RUNS = "horarium_job_runs_total"
DURATION = "horarium_job_duration_seconds"
FAILURES = "horarium_job_failures_in_a_row"
ALWAYS_SHOWN = ("completed", "failed", "missed")
"""Outcomes that are shown before there was any: a counter that begins at 1 has not increased."""
HEADS = {
    LAST_SUCCESS: ("gauge", "When a run of the job last completed, as Unix time."),
    FAILURES: ("gauge", "How many runs of the job have failed since one completed."),
    RUNS: ("counter", "Runs of the job that came to their end, by outcome."),
    DURATION: ("histogram", "How long the last attempt of a run took."),
}


class JobMeter:
    """The figures of one job."""

    __slots__ = ("_buckets", "_durations", "_job", "_outcomes", "_seconds", "_texts", "failures", "last_success_at")

    def __init__(self, job: str) -> None:
        self.last_success_at: Instant | None = None
        self.failures: int | None = None
        self._job = job
        self._outcomes = dict.fromkeys(ALWAYS_SHOWN, 0)
        self._buckets = [0] * len(DURATION_BUCKETS)
        self._durations = 0
        self._seconds = 0.0
        self._texts: dict[str, str] | None = None

    def ended(self, end: End, count: int) -> None:
        """This number of runs came to this end."""
        outcome = outcome_of(end)
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + end.fires * count
        if end.started_at is not None and end.finished_at is not None:
            self._took((end.finished_at - end.started_at) / SECOND, count)
        if end.state is State.COMPLETED:
            self.succeeded(end.finished_at)
        self._texts = None

    def healthy(self, health: Health) -> None:
        """The store's record of it."""
        self.succeeded(health.last_success_at)
        if self.failures != health.failures_in_a_row:
            self.failures, self._texts = health.failures_in_a_row, None

    def succeeded(self, at: Instant | None) -> None:
        """It is known to have succeeded then."""
        if at is not None and at > (self.last_success_at or 0):
            self.last_success_at, self._texts = at, None

    def _took(self, seconds: float, count: int) -> None:
        seconds = max(seconds, 0.0)
        self._durations += count
        self._seconds += seconds * count
        for index, bound in enumerate(DURATION_BUCKETS):
            if seconds <= bound:
                self._buckets[index] += count

    def texts(self) -> dict[str, str]:
        """The samples of each family."""
        if self._texts is None:
            label = f'job="{self._job}"'
            self._texts = {
                LAST_SUCCESS: self._last_success(label),
                FAILURES: "" if self.failures is None else f"{FAILURES}{{{label}}} {self.failures}\n",
                RUNS: "".join(
                    f'{RUNS}{{{label},outcome="{name}"}} {n}\n' for name, n in sorted(self._outcomes.items())
                ),
                DURATION: self._duration(label) if self._durations else "",
            }
        return self._texts

    def _last_success(self, label: str) -> str:
        if self.last_success_at is None or self._job == OTHER:
            return ""
        return f"{LAST_SUCCESS}{{{label}}} {self.last_success_at / SECOND:.3f}\n"

    def _duration(self, label: str) -> str:
        lines = [
            f'{DURATION}_bucket{{{label},le="{float(bound)}"}} {count}\n'
            for bound, count in zip(DURATION_BUCKETS, self._buckets, strict=True)
        ]
        lines.append(f'{DURATION}_bucket{{{label},le="+Inf"}} {self._durations}\n')
        lines.append(f"{DURATION}_sum{{{label}}} {self._seconds:.6f}\n")
        lines.append(f"{DURATION}_count{{{label}}} {self._durations}\n")
        return "".join(lines)


class JobMeters:
    """The figures of the jobs that this process knows, `jobs_max` of them by name."""

    def __init__(self, jobs_max: int = JOBS_MAX_DEFAULT) -> None:
        self._jobs_max = jobs_max
        self._meters: dict[str, JobMeter] = {}
        self.scraped = False
        """Whether anyone has read them yet."""

    @property
    def full(self) -> bool:
        """Whether a job that is not shown yet would not be."""
        return len(self._meters.keys() - {OTHER}) >= self._jobs_max

    @property
    def names(self) -> list[str]:
        """The jobs that are shown."""
        return [name for name in self._meters if name != OTHER]

    def ended(self, ends: Iterable[tuple[End, int]]) -> None:
        """Runs came to these ends, or were skipped: each end with its count. Those that go on are passed over."""
        for end, count in ends:
            if end.job is not None and end.state not in UNFINISHED:
                self._of(end.job).ended(end, count)

    def show(self, job: str, health: Health) -> None:
        """There is this job; it is shown if there is room."""
        if job in self._meters or not self.full:
            self._of(job).healthy(health)

    def forget(self, names: Collection[str]) -> None:
        """These jobs are gone."""
        for name in names:
            self._meters.pop(name, None)

    def _of(self, job: str) -> JobMeter:
        meter = self._meters.get(job)
        if meter is None:
            name = OTHER if self.full else job
            meter = self._meters.setdefault(name, JobMeter(name))
        return meter

    async def put_into_words(self) -> None:
        """Have the changed texts ready, in steps between which other tasks have their turn."""
        slices = Slices()
        for meter in list(self._meters.values()):
            meter.texts()
            await slices.give_way()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        texts = [self._meters[name].texts() for name in sorted(self._meters)]
        parts: list[str] = []
        for family, (kind, help) in HEADS.items():
            parts += (f"# HELP {family} {help}\n", f"# TYPE {family} {kind}\n", *(text[family] for text in texts))
        return "".join(parts).encode()


def outcome_of(run: End) -> str:
    """`completed`, `failed`, `cancelled`, `skipped`, or `missed` where nothing ran at the time."""
    missed = run.state is State.SKIPPED and run.disposition in (Disposition.MISSED, None)
    return "missed" if missed else run.state.value
