"""Ends on a bus that may come from a worker which had stopped sending heartbeats.

An end without a token, of a run whose last worker was lost, counts only after the present attempt has reported
(`running`, or a heartbeat): until then it is attributed to the lost one. It is kept for a moment, since another node
may have the sign of life at hand. Workers that never say `running` are known by the runs that they end; and a report
that is repeated under yet another attempt counts.
"""

from __future__ import annotations

from collections.abc import Collection

from horarium.clock import SECOND, Instant
from horarium.model import Run, State, awaits_worker
from horarium.ports import Report
from horarium.rules.settling import after_silence
from horarium.services.buses.bus_reports import Reading

DOUBT = SECOND
"""How long an end that may be a late one is kept."""
DOUBTED_MAX = 1_000
"""Runs of which late ends are remembered."""


class LateEnds:
    """The knowledge of the workers of one bus, to tell a late end from one that counts, and the ends that are kept."""

    def __init__(self) -> None:
        self._curt: set[str] = set()
        self._doubted: dict[str, int] = {}
        self._kept: list[tuple[Report, Instant]] = []

    def is_late(self, reading: Reading, run: Run, alive: set[str]) -> bool:
        """Whether this end is that of the lost worker, as far as is known. `alive`: the runs with a sign of life among
        the reports at hand."""
        if reading.outcome is None or reading.token is not None or run.state is not State.RUNNING:
            return False
        known = not awaits_worker(run) or run.id in alive
        if after_silence(run):
            said_before = self._doubted.get(run.id, run.token) < run.token
            return not (known or said_before or reading.job in self._curt)
        if known:
            self._curt.discard(reading.job)
        else:
            self._curt.add(reading.job)
        return False

    def doubt(self, run: Run) -> None:
        """A late end of this run was dropped."""
        self._doubted[run.id] = run.token
        if len(self._doubted) > DOUBTED_MAX:
            del self._doubted[next(iter(self._doubted))]

    def keep(self, report: Report, now: Instant) -> None:
        self._kept.append((report, now + DOUBT))

    def take_ripe(self, now: Instant) -> list[Report]:
        """The ends that were kept for long enough."""
        ripe = [report for report, until in self._kept if not now < until <= now + DOUBT]
        if ripe:
            self._kept = [(report, until) for report, until in self._kept if now < until <= now + DOUBT]
        return ripe

    @property
    def next_at(self) -> Instant | None:
        """When the next one has been kept for long enough."""
        return min((until for _, until in self._kept), default=None)

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget the workers of other jobs."""
        self._curt.intersection_update(jobs)
