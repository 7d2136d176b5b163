"""Reports that change nothing: counted, and written to the log a few a second."""

from __future__ import annotations

from horarium.clock import Clock, Instant
from horarium.model import Cancelled, Failed, Run, State, Succeeded
from horarium.ports import Report
from horarium.services.buses.bus_reports import Reading
from horarium.services.loop.quiet import QuietLog
from horarium.services.metrics.telemetry import Telemetry


class Discards:
    """The reports of one bus that were refused or dropped."""

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
        self._dropped.warning(
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
