"""The judge: what should have happened, beside what did.

`Owed` is the oracle: each job's fire times, by arithmetic or from the trigger's own list, never from the server. The
ledger holds them against the runs that the store shows at the end, against what the receiver, the workers and the
observer wrote down, and against the faults. It counts violations of eight invariants:

    lost       a fire time without a run and without a skipped row over it; a run that is not final; an acknowledged
               run that is not there; a completed run that nobody was sent; an accepted completion that is not there
    dup_run    a fire time with two runs, or with a run and a skipped row
    dup_done   a run of which two completions were accepted
    dup_start  a run that was delivered again although no fault hit its owner and its endpoint did not ask for it, or
               under a token that is not larger
    early      a delivery before its run was due
    stale      an outcome written under a stale token: accepted after a larger token was out, or a result that is not
               that of the last attempt
    moved      a run that was seen final and is not the same, to the last field, at the end
    refused    a report that was refused though nobody else had the run and it had not been told before

A store may forget what it had promised in one case: a Redis that brings its log to the disk every second, at a power
loss. What was promised within `FORGETS_SECONDS` before one is then counted as forgotten; everything else still holds.
Lateness and recovery are measured, and judged by the test.
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
from tests.proof.verdict import Verdict

SECOND = 1_000_000
SETTLE_SECONDS = 2.0
"""How long after its answer an attempt may still be cut off: its outcome waits for the group that is being written."""
WAKE_SECONDS = 1.0
POWER_LOSS = "power loss"
FORGETS_SECONDS = 2.0
"""The second between two syncs of the log, and as much again for what was under way."""

FINAL = frozenset({"completed", "failed", "cancelled", "skipped"})
_CLAIMED = re.compile(r"attempt (\d+) claimed by (\S+)")


@dataclass(frozen=True)
class Promise:
    """A run that the API acknowledged: when, and for which fire time of which job (None: of none)."""

    at: int
    job: str = ""
    fire_at: int | None = None


@dataclass
class Ledger:
    """Everything that was written down. `owed`: job name to its fire times. `acknowledged`: run ids that the API
    promised. `seen`: rows that an observer saw final. `relies_on`: the nodes without which a worker can
    neither renew a lease nor report. `one_file`: all nodes share one file, so that one which is paused within a write
    stops them all."""

    owed: Mapping[str, Sequence[int]]
    runs: Sequence[Mapping[str, Any]]
    arrivals: Sequence[Arrival] = ()
    reports: Iterable[Reported] = ()
    faults: Sequence[Fault] = ()
    acknowledged: Mapping[str, Promise] = field(default_factory=dict)
    seen: Sequence[Mapping[str, Any]] = ()
    relies_on: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lease_seconds: float = 2.0
    one_file: bool = False

    def judge(self) -> Verdict:
        verdict = Verdict()
        self._known = {run["id"]: run for run in self.runs}
        self._arrived: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in sorted(self.arrivals, key=_claim_order):
            self._arrived[arrival.run].append(arrival)
        verdict.fires = sum(map(len, self.owed.values()))
        verdict.runs = len(self.runs)
        verdict.states.update(run["state"] for run in self.runs)
        verdict.faults.update(fault.kind for fault in self.faults)
        excused = self._promises(verdict)
        self._fire_times(verdict, excused)
        self._ends(verdict)
        self._deliveries(verdict)
        self._completions(verdict)
        self._results(verdict)
        self._seen(verdict)
        return verdict

    def _forgot(self, promised_at: int, used_within_seconds: float = 0.0) -> bool:
        """Whether the store may have forgotten what it promised then, or so long before."""
        return any(
            fault.at - FORGETS_SECONDS * SECOND <= promised_at <= fault.until + used_within_seconds * SECOND
            for fault in self.faults
            if fault.kind == POWER_LOSS
        )

    def _forgot_claim(self, delivered_at: int) -> bool:
        """Whether the claim behind a delivery may be one of those: it is used for as long as its lease stands."""
        return self._forgot(delivered_at, self.lease_seconds)

    # ---- every fire time exactly once

    def _promises(self, verdict: Verdict) -> set[tuple[str, int | None]]:
        """What was acknowledged is there. Job and fire time of what may have been forgotten."""
        excused = set()
        for run, promise in self.acknowledged.items():
            if run in self._known:
                continue
            if self._forgot(promise.at):
                verdict.forgotten["acknowledged run"] += 1
                excused.add((promise.job, promise.fire_at))
            else:
                verdict.lost.append(f"{run} was acknowledged and is not there")
        return excused

    def _fire_times(self, verdict: Verdict, excused: set[tuple[str, int | None]]) -> None:
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
                if count == 0 and (job, fire) not in excused:
                    verdict.lost.append(f"{job}: fire time {fire} has no run and no skipped row")
                elif count > 1:
                    verdict.dup_run.append(f"{job}: fire time {fire} is accounted for {count} times")
            owed = set(fires)
            verdict.dup_run += [f"{job}: a run for {fire}, which is no fire time" for fire in exact if fire not in owed]

    def _ends(self, verdict: Verdict) -> None:
        verdict.lost += [f"{r['id']} ({r['job']}) is {r['state']}" for r in self.runs if r["state"] not in FINAL]
        for delivered in self._arrived.keys() - self._known.keys():
            promise = self.acknowledged.get(delivered)
            if promise is not None and self._forgot(promise.at):
                verdict.forgotten["delivered run"] += 1
            else:
                verdict.lost.append(f"{delivered} was delivered and is not there")
        for run in self.runs:
            if run["state"] == "completed" and run["id"] not in self._arrived:
                verdict.lost.append(f"{run['id']} ({run['job']}) is completed and was never delivered")

    # ---- no delivery too many, none too early

    def _deliveries(self, verdict: Verdict) -> None:
        verdict.deliveries = len(self.arrivals)
        for run_id, arrivals in self._arrived.items():
            run = self._known.get(run_id)
            if run is None:
                continue
            self._on_time(verdict, run, arrivals[0])
            for before, again in pairwise(arrivals):
                self._redelivery(verdict, run, before, again)

    def _on_time(self, verdict: Verdict, run: Mapping[str, Any], first: Arrival) -> None:
        """Late counts from the fire time, whatever was made of it since; what was asked for after its fire time (by
        hand, or a backfill) counts from when it was asked for."""
        asked = run["cause"] in ("manual", "backfill")
        owed_at = max(first.fire_at, instant(run["created_at"])) if asked else first.fire_at
        if first.at < first.fire_at:
            verdict.early.append(f"{run['id']} ({run['job']}) came {first.fire_at - first.at} us before its time")
        verdict.late_seconds.append((first.at - owed_at) / SECOND)

    def _redelivery(self, verdict: Verdict, run: Mapping[str, Any], before: Arrival, again: Arrival) -> None:
        """A second delivery must have a reason, and a larger token."""
        if before.token and int(again.token) <= int(before.token) and not self._forgot_claim(before.at):
            verdict.dup_start.append(f"{run['id']}: token {again.token} came after token {before.token}")
        if before.status is not None and before.status >= 300:
            verdict.again["asked for by its endpoint"] += 1
            return
        owner = _owner(run, before.attempt)
        hits = self._hits(owner, before)
        forgot = self._forgot_claim(before.at)
        if not hits and forgot:
            verdict.again[POWER_LOSS] += 1
            return
        if not hits:
            verdict.dup_start.append(
                f"{run['id']} ({run['job']}) came again as attempt {again.attempt} at {again.at / SECOND:.2f},"
                f" {(again.at - before.at) / SECOND:.2f} s after attempt {before.attempt} at {owner}, which no fault"
                f" hit until {(before.answered_at or 0) / SECOND:.2f}"
            )
            return
        blameless = any(hit.node == owner and not _outlived(hit, before, again) for hit in hits)
        if self._had_done_it(run, owner, before, again) and not blameless and not forgot:
            verdict.dup_start.append(
                f"{run['id']} ({run['job']}) was performed by {owner} in attempt {before.attempt}, and again by it in"
                f" attempt {again.attempt}: {', '.join(sorted({hit.kind for hit in hits}))} is no reason"
            )
        released = any(fault.kind == "terminate" for fault in hits)
        if again.attempt <= before.attempt and not released and not forgot:
            verdict.dup_start.append(f"{run['id']}: attempt {again.attempt} came after attempt {before.attempt}")
        verdict.again[next((f"{hit.kind} of its owner" for hit in hits if hit.node == owner), hits[0].kind)] += 1
        verdict.recovery_seconds.append((again.at - hits[0].at) / SECOND)

    def _had_done_it(self, run: Mapping[str, Any], owner: str | None, before: Arrival, again: Arrival) -> bool:
        """Whether a node performed it twice that knew of its end: an outage of the store is no reason for that, nor
        is it that the node stood still with the end in its hands, unless the store took the end and forgot it."""
        ended = before.status is not None and before.status < 300 and before.status != 202
        if before.answered_at is not None and self._forgot(before.answered_at):
            return False
        known = owner is not None and owner not in self.relies_on
        return ended and known and _owner(run, again.attempt) == owner

    def _hits(self, owner: str | None, arrival: Arrival) -> list[Fault]:
        """The faults that may have cut off this attempt: each hit the owner (or everybody, or a node that the owner
        relies on) between the arrival and the moment at which the outcome must have been written, which an outage of
        the store puts off."""
        struck = {None, owner, *self.relies_on.get(owner or "", frozenset())}
        settled_by = float("inf") if arrival.answered_at is None else arrival.answered_at + SETTLE_SECONDS * SECOND
        hits = []
        for fault in sorted(self.faults, key=lambda fault: fault.at):
            of_all = self.one_file and fault.kind == "pause"
            # Who was paused between the claim and the delivery makes it as soon as it wakes up.
            until = fault.until + (WAKE_SECONDS * SECOND if fault.kind == "pause" else 0)
            if (owner is None or fault.node in struck or of_all) and arrival.at <= until and fault.at <= settled_by:
                hits.append(fault)
                if fault.node is None:
                    settled_by = max(settled_by, fault.until + SETTLE_SECONDS * SECOND)
        return hits

    # ---- done once, and under the token that held

    def _completions(self, verdict: Verdict) -> None:
        accepted: dict[str, list[Reported]] = defaultdict(list)
        for report in self.reports:
            if report.status == 200:
                accepted[report.run].append(report)
                self._accepted(verdict, report)
            else:
                self._refused(verdict, report)
        for run_id, reports in accepted.items():
            run, last = self._known.get(run_id), max(reports, key=lambda report: report.at)
            if len(reports) > 1 and self._given_out_twice(run_id, {report.token for report in reports}):
                verdict.forgotten["claim"] += len(reports) - 1
            elif len(reports) > 1 and not all(self._forgot(report.at) for report in reports if report is not last):
                verdict.dup_done.append(f"{run_id}: completed under the tokens {[r.token for r in reports]}")
            elif len(reports) > 1:
                verdict.forgotten["outcome"] += len(reports) - 1
            right = run is not None and run["state"] == "completed" and _token_of(run) == last.token
            if not right and self._forgot(last.at):
                verdict.forgotten["outcome"] += 1
            elif run is None or run["state"] != "completed":
                verdict.lost.append(f"{run_id}: its completion was accepted, and it is {run and run['state']}")
            elif not right:
                verdict.stale.append(f"{run_id}: accepted under {last.token}, but it holds {run['result']}")

    def _given_out_twice(self, run_id: str, tokens: set[int]) -> bool:
        """Whether all of these are one token, which the store gave out, forgot and gave out again: who had it first and
        who has it now are the same to it, and the second report is a repeated one."""
        under = [arrival for arrival in self._arrived[run_id] if arrival.token and {int(arrival.token)} == tokens]
        return any(self._forgot_claim(arrival.at) for arrival in under[:-1])

    def _accepted(self, verdict: Verdict, report: Reported) -> None:
        """Nobody else may have had the run when the report was first sent."""
        newer = [a for a in self._arrived[report.run] if a.at < report.began_at and int(a.token) > report.token]
        if newer:
            verdict.stale.append(
                f"{report.run}: accepted under token {report.token} {report.began_at - newer[0].at} us after it was"
                f" delivered under token {newer[0].token}"
            )

    def _refused(self, verdict: Verdict, report: Reported) -> None:
        """A refusal must have a reason: the lease had gone to another attempt, or the report had been taken before its
        answer was lost."""
        run = self._known.get(report.run)
        if any(int(arrival.token) > report.token for arrival in self._arrived[report.run]):
            verdict.refusals["its lease had passed on"] += 1
        elif run is not None and _token_of(run) == report.token and report.tries > 1:
            verdict.refusals["taken before, its answer was lost"] += 1
        elif any(self._forgot_claim(arrival.at) for arrival in self._arrived[report.run]):
            # Another attempt was given the same token, and was faster.
            verdict.forgotten["claim"] += 1
        else:
            verdict.refused.append(f"{report.run}: token {report.token} was answered {report.status}; {run}")

    def _results(self, verdict: Verdict) -> None:
        """What a completed run holds comes from its last attempt: one that was begun later was claimed later, before
        the end, so an earlier one's outcome would be a stale one."""
        for run_id, arrivals in self._arrived.items():
            run = self._known.get(run_id)
            body = None if run is None or run["state"] != "completed" else (run["result"] or {}).get("body")
            if run is None or body is None or body == str(arrivals[-1].serial):
                continue
            if any(self._forgot_claim(arrival.at) for arrival in arrivals):
                # Its token was given out a second time: neither attempt is stale.
                verdict.forgotten["claim"] += 1
            else:
                serials = [arrival.serial for arrival in arrivals]
                verdict.stale.append(f"{run_id}: holds the answer to delivery {body}; there were {serials}")

    def _seen(self, verdict: Verdict) -> None:
        verdict.looked_at = len(self.seen)
        for row in self.seen:
            now = self._known.get(row["id"])
            if now == row:
                continue
            if row["finished_at"] is not None and self._forgot(instant(row["finished_at"])):
                verdict.forgotten["end"] += 1
                continue
            differs = "all of it" if now is None else {key: (row[key], now[key]) for key in row if row[key] != now[key]}
            verdict.moved.append(f"{row['id']} ({row['job']}) was final; since then changed: {differs}")


def _claim_order(arrival: Arrival) -> tuple[int, int]:
    """In which order the attempts of one run were claimed: one whose owner slept on the way may come last."""
    return int(arrival.token or arrival.attempt), arrival.at


def _outlived(hit: Fault, before: Arrival, again: Arrival) -> bool:
    """Whether a node merely stood still after it had the answer, and had the claim that came next: it woke up with the
    outcome in its hands."""
    known_at = (before.answered_at or hit.at) + WAKE_SECONDS * SECOND
    next_claim = bool(before.token) and int(again.token) == int(before.token) + 1
    return hit.kind in ("pause", "starved") and known_at < hit.at and next_claim


def _token_of(run: Mapping[str, Any]) -> int | None:
    """Under which token the run's result was reported, where it was."""
    result = run["result"]
    return result.get("token") if isinstance(result, dict) else None


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
