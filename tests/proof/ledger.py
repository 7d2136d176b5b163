"""The judge: what should have happened, beside what did.

`Owed` is the oracle: each job's fire times, by arithmetic or from the trigger's own list, never from the server. The
ledger holds them against the runs that the store shows at the end, against what the receiver and the workers wrote
down, and against the faults. It counts violations of five invariants:

    lost       a fire time without a run and without a skipped row over it; a run that is not final; an acknowledged
               run that is not there; a completed run that nobody was sent
    dup_run    a fire time with two runs, or with a run and a skipped row
    dup_done   a run of which two completions were accepted
    dup_start  a run that was delivered again although no fault hit its owner and its endpoint did not ask for it
    early      a delivery before its run was due

Everything else (lateness, recovery) is measured, and judged by the test.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.proof.harness import Fault
from tests.proof.receiver import Arrival, Reported, instant

SECOND = 1_000_000
SETTLE_SECONDS = 2.0
"""How long after its answer an attempt may still be cut off: its outcome waits for the group that is being written."""

FINAL = frozenset({"completed", "failed", "cancelled", "skipped"})
_CLAIMED = re.compile(r"attempt (\d+) claimed by (\S+)")


@dataclass
class Verdict:
    """Violations, by invariant, each as a sentence; and what was measured."""

    lost: list[str] = field(default_factory=list)
    dup_run: list[str] = field(default_factory=list)
    dup_done: list[str] = field(default_factory=list)
    dup_start: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    fires: int = 0
    runs: int = 0
    deliveries: int = 0
    redelivered: int = 0
    states: Counter[str] = field(default_factory=Counter)
    late_seconds: list[float] = field(default_factory=list)
    recovery_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def violations(self) -> list[str]:
        parts = ("lost", "dup_run", "dup_done", "dup_start", "early")
        return [f"{part}: {line}" for part in parts for line in getattr(self, part)]

    def must_hold(self) -> None:
        """Fail with every violation, if there is one."""
        found = self.violations()
        assert not found, f"{len(found)} violations\n" + "\n".join(found[:20])

    def __str__(self) -> str:
        done = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        hit = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none"
        return (
            f"{self.fires} fire times, {self.runs} runs ({done}), {self.deliveries} deliveries"
            f" ({self.redelivered} again); faults: {hit}; lost {len(self.lost)}, dup-run {len(self.dup_run)},"
            f" dup-done {len(self.dup_done)}, dup-start {len(self.dup_start)}, early {len(self.early)};"
            f" late p50 {_quantile(self.late_seconds, 0.5):.3f} p99 {_quantile(self.late_seconds, 0.99):.3f}"
            f" max {max(self.late_seconds, default=0):.3f} s;"
            f" redelivered after p50 {_quantile(self.recovery_seconds, 0.5):.2f}"
            f" max {max(self.recovery_seconds, default=0):.2f} s"
        )


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


@dataclass
class Ledger:
    """Everything that was written down. `owed`: job name to its fire times. `acknowledged`: run ids that the API
    promised. `delivered`: which jobs' runs are sent to the receiver (by prefix; empty: none)."""

    owed: Mapping[str, Sequence[int]]
    runs: Sequence[Mapping[str, Any]]
    arrivals: Sequence[Arrival] = ()
    reports: Iterable[Reported] = ()
    faults: Sequence[Fault] = ()
    acknowledged: Iterable[str] = ()
    http: bool = True

    def judge(self) -> Verdict:
        verdict = Verdict()
        verdict.fires = sum(map(len, self.owed.values()))
        verdict.runs = len(self.runs)
        verdict.states.update(run["state"] for run in self.runs)
        verdict.faults.update(fault.kind for fault in self.faults)
        self._fire_times(verdict)
        self._ends(verdict)
        self._deliveries(verdict)
        self._completions(verdict)
        return verdict

    # ---- I1, I2: every fire time exactly once

    def _fire_times(self, verdict: Verdict) -> None:
        by_job: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for run in self.runs:
            if run["cause"] != "manual":
                by_job[run["job"]].append(run)
        for job, fires in self.owed.items():
            covers = [_cover(run) for run in by_job[job]]
            exact = Counter(first for first, last in covers if last is None)
            ranges = [(first, last) for first, last in covers if last is not None]
            for fire in fires:
                count = exact[fire] + sum(first <= fire <= last for first, last in ranges)
                if count == 0:
                    verdict.lost.append(f"{job}: fire time {fire} has no run and no skipped row")
                elif count > 1:
                    verdict.dup_run.append(f"{job}: fire time {fire} is accounted for {count} times")
            owed = set(fires)
            verdict.dup_run += [f"{job}: a run for {fire}, which is no fire time" for fire in exact if fire not in owed]

    def _ends(self, verdict: Verdict) -> None:
        known = {run["id"]: run for run in self.runs}
        verdict.lost += [f"{r['id']} ({r['job']}) is {r['state']}" for r in self.runs if r["state"] not in FINAL]
        verdict.lost += [f"{run} was acknowledged and is not there" for run in self.acknowledged if run not in known]
        arrived = {arrival.run for arrival in self.arrivals}
        verdict.lost += [f"{run} was delivered and is not there" for run in arrived - known.keys()]
        for run in self.runs if self.http else ():
            if run["state"] == "completed" and run["id"] not in arrived:
                verdict.lost.append(f"{run['id']} ({run['job']}) is completed and was never delivered")

    # ---- I4: no delivery too many, none too early

    def _deliveries(self, verdict: Verdict) -> None:
        known = {run["id"]: run for run in self.runs}
        by_run: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in self.arrivals:
            by_run[arrival.run].append(arrival)
        verdict.deliveries = len(self.arrivals)
        for run_id, arrivals in by_run.items():
            run = known.get(run_id)
            if run is None:
                continue
            arrivals.sort(key=lambda arrival: arrival.at)
            self._on_time(verdict, run, arrivals[0])
            verdict.redelivered += len(arrivals) - 1
            for before, again in pairwise(arrivals):
                self._redelivery(verdict, run, before, again)

    def _on_time(self, verdict: Verdict, run: Mapping[str, Any], first: Arrival) -> None:
        due_at = instant(run["due_at"]) if run["attempt"] <= 1 else max(first.fire_at, instant(run["created_at"]))
        if first.at < first.fire_at:
            verdict.early.append(f"{run['id']} ({run['job']}) came {first.fire_at - first.at} us before its time")
        verdict.late_seconds.append((first.at - max(due_at, first.fire_at)) / SECOND)

    def _redelivery(self, verdict: Verdict, run: Mapping[str, Any], before: Arrival, again: Arrival) -> None:
        if before.status is not None and before.status >= 300:
            return
        owner = _owner(run, before.attempt)
        hits = [fault for fault in self.faults if _hits(fault, owner, before)]
        if not hits:
            verdict.dup_start.append(
                f"{run['id']} ({run['job']}) came again as attempt {again.attempt}, {again.at - before.at} us after"
                f" attempt {before.attempt} at {owner}, which no fault hit"
            )
            return
        if again.attempt <= before.attempt and not any(fault.kind == "terminate" for fault in hits):
            verdict.dup_start.append(f"{run['id']}: attempt {again.attempt} came after attempt {before.attempt}")
        verdict.recovery_seconds.append((again.at - hits[0].at) / SECOND)

    # ---- I3: done once

    def _completions(self, verdict: Verdict) -> None:
        accepted: dict[str, list[int]] = defaultdict(list)
        for report in self.reports:
            if report.status == 200:
                accepted[report.run].append(report.token)
        known = {run["id"]: run for run in self.runs}
        for run_id, tokens in accepted.items():
            run = known.get(run_id)
            if len(tokens) > 1:
                verdict.dup_done.append(f"{run_id}: completed under the tokens {tokens}")
            elif run is None or run["state"] != "completed":
                verdict.lost.append(f"{run_id}: its completion was accepted, and it is {run and run['state']}")
            elif (run["result"] or {}).get("token") != tokens[0]:
                verdict.dup_done.append(f"{run_id}: accepted under {tokens[0]}, but it holds {run['result']}")


def _cover(run: Mapping[str, Any]) -> tuple[int, int | None]:
    """The fire times that a row stands for: one (no end), or a range."""
    first = instant(run["fire_at"])
    return (first, instant(run["last_fire_at"])) if run["last_fire_at"] else (first, None)


def _owner(run: Mapping[str, Any], attempt: int) -> str | None:
    for event in run["history"]:
        found = _CLAIMED.search(event["message"])
        if found and int(found[1]) == attempt:
            return found[2]
    return None


def _hits(fault: Fault, owner: str | None, arrival: Arrival) -> bool:
    """Whether the fault may have cut off this attempt: it hit the owner (or everybody) between the arrival and the
    moment at which the outcome must have been written."""
    if fault.node is not None and owner is not None and fault.node != owner:
        return False
    settled_by = float("inf") if arrival.answered_at is None else arrival.answered_at + SETTLE_SECONDS * SECOND
    return fault.at <= settled_by and fault.until >= arrival.at
