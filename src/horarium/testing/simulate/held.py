"""What may not begin, worked out a second time: under a hold nothing, beyond a rate no more than it allows, before a
decision no run that waits for one.

The books hear of every hold as it is written and of every attempt as it begins; the product's rules are not looked at.
Holds that repeat do so by a plain interval from the epoch in this world: arithmetic says when they are in force.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import Cause, EventKind, Job, Run
from horarium.model.holds import Hold, HoldScope
from horarium.model.records import Record
from horarium.testing.simulate.asked import Asked
from horarium.testing.simulate.trace import Trace

HOLDS = "hold/"
IN_FORCE = 2 * SECOND
"""Within this every node obeys a hold, from its commit on."""
SKEW = SECOND // 2
"""How much nodes may disagree on the time."""
OURS = ("follow", "notify")
DECIDED = (EventKind.DECIDED, EventKind.EXPIRED)
PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)

_decode = msgspec.json.Decoder(Hold).decode


class Held:
    """The books. `jobs`: every version of each job."""

    def __init__(self, trace: Trace, versions: Mapping[str, list[Job]]) -> None:
        self._trace = trace
        self._versions = versions
        self._written: dict[str, list[tuple[int, Hold]]] = defaultdict(list)
        self._begun: dict[str, list[int]] = defaultdict(list)
        self._overridden: dict[tuple[str, Instant], tuple[int, Instant | None]] = {}
        self.asked = Asked()
        self.lifted: set[tuple[str, Instant]] = set()
        """Fire times of jobs that were to be as their rule has them again."""

    # ---- what happens

    def record_put(self, record: Record) -> None:
        """A record was written."""
        if record.name.startswith(HOLDS):
            hold = _decode(record.body)
            self._trace.note(f"hold {hold.id} {hold.scope} {hold.begins_at} {hold.ends_at} {hold.lifted_at}")
            self._written[hold.id].append((self._trace.elapsed, hold))

    def record_forgotten(self, name: str) -> None:
        """A record is gone."""
        self._written.pop(name.removeprefix(HOLDS), None)

    def changed(self, run: Run) -> None:
        """A run was written: since it was asked about, it was decided about once at most."""
        since = max((at for at, event in enumerate(run.history) if event.kind is EventKind.ASKED), default=0)
        decisions = [event for event in run.history[since:] if event.kind in DECIDED]
        if len(decisions) > 1:
            self._trace.fail(f"run {run.id} was decided twice: {[event.message for event in decisions]}")

    def overridden(self, job_id: str, fire_at: Instant, to: Instant | None) -> None:
        """A person was answered that this fire time is skipped, or moved to another instant."""
        self._overridden[job_id, fire_at] = len(self._versions[job_id]), to

    def as_its_rule_has_it(self, job_id: str, fire_at: Instant) -> None:
        """A person asks to take that back."""
        self._overridden.pop((job_id, fire_at), None)

    def begins(self, run: Run) -> None:
        """An attempt begins: of our own handlers, or in the hands of a worker."""
        asked = [event.kind for event in run.history if event.kind is EventKind.ASKED or event.kind in DECIDED]
        if asked[-1:] == [EventKind.ASKED]:
            self._trace.fail(f"run {run.id} begins though it waits for a decision")
        versions, to = self._overridden.get((run.job_id or "", run.fire_at), (0, None))
        was_edited = versions != len(self._versions.get(run.job_id or "", ()))
        # A run that was made once that instant had come waits for no second time if the clock goes back.
        has_come = to is not None and to <= max(self._trace.wall, run.created_at) + SKEW
        if versions and not was_edited and run.cause in PLANNED and not has_come:
            self._trace.fail(f"run {run.id} begins though its fire time was {'skipped' if to is None else 'moved'}")
        for hold_id in [] if self._trace.elapsed < self._trace.stepped_at + IN_FORCE else self._written:
            if self._is_held(hold_id, run):
                self._trace.fail(f"run {run.id} in {run.queue} begins under hold {hold_id}")
        for rate in () if self._trace.skewed else run.rates:
            self._count(run, rate.key, rate.max, to_micros(rate.per_seconds))

    def given_up(self, run: Run) -> None:
        """A run that no worker began ends as not started: its limit counts from the end of each hold over it."""
        limits = [job.timeouts.start_seconds for job in self._versions.get(run.job_id or "", ())]
        if self._trace.clock_stepped or self._trace.skewed or not limits:
            return
        since = self._trace.wall - to_micros(min(limit or 0 for limit in limits)) + SECOND
        for hold_id, written in self._written.items():
            hold = written[-1][1]
            was_held = hold.repeat is None and hold.begins_at < since and self._covers(hold.scope, run)
            lifted_lately = hold.lifted_at is not None and hold.lifted_at > since
            # A stretch of one that repeats may have begun once the limit was over, while that was being written.
            in_time = hold.repeat is None or (run.start_by is not None and _is_in_force(hold, run.start_by))
            if (in_time and self._is_held(hold_id, run)) or (was_held and lifted_lately and _is_in_force(hold, since)):
                self._trace.fail(f"run {run.id} is given up as not started in time, for hold {hold_id}")

    # ---- each rule

    def _is_held(self, hold_id: str, run: Run) -> bool:
        """Whether the hold lies over the run for two seconds at least, as it was written then and as it is now."""
        since = self._trace.elapsed - IN_FORCE
        written = self._written[hold_id]
        seen = [hold for at, hold in written if at <= since][-1:] + [hold for at, hold in written if at > since]
        if written[0][0] > since:
            return False
        now = self._trace.wall
        return all(
            self._covers(hold.scope, run) and _is_in_force(hold, now - SKEW) and _is_in_force(hold, now + SKEW)
            for hold in seen
        )

    def _covers(self, scope: HoldScope, run: Run) -> bool:
        if run.queue in OURS:
            return False
        job = self._versions[run.job_id][-1] if run.job_id else None
        if scope.labels:
            was_so = job is not None and job.updated_at < self._trace.wall - IN_FORCE
            return was_so and all((job.labels if job else {}).get(key) == value for key, value in scope.labels.items())
        if scope.queue is not None:
            return run.queue in (scope.queue, f"pull/{scope.queue}")
        return scope.all or (scope.job is not None and scope.job == run.job)

    def _count(self, run: Run, key: str, most: int, window: int) -> None:
        """No window of this length holds more begins of this key."""
        begun = self._begun[key]
        begun.append(self._trace.elapsed)
        self._trace.note(f"{key} taken by {run.id[-6:]} token={run.token}")
        if len(begun) > most and begun[-1] - begun[-1 - most] < window:
            self._trace.fail(f"run {run.id} begins as number {most + 1} of {key} within {window / SECOND:g} s")


def _is_in_force(hold: Hold, at: Instant) -> bool:
    end = min(hold.ends_at or at + 1, hold.lifted_at or at + 1)
    if not hold.begins_at <= at < end:
        return False
    if hold.repeat is None:
        return True
    return at % to_micros(hold.repeat.trigger["every_seconds"]) < to_micros(hold.repeat.seconds)
