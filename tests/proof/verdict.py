"""What the ledger found: violations of each invariant as sentences, what was explained, and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

INVARIANTS = ("lost", "dup_run", "dup_done", "dup_start", "early", "stale", "moved", "refused")
"""See `ledger` for what each counts."""


@dataclass
class Verdict:
    """Violations, by invariant; `again`: redeliveries by what cut the attempt off; `refusals`: refused reports by why;
    `forgotten`: what a store forgot that had been promised, where it may."""

    lost: list[str] = field(default_factory=list)
    dup_run: list[str] = field(default_factory=list)
    dup_done: list[str] = field(default_factory=list)
    dup_start: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fires: int = 0
    runs: int = 0
    deliveries: int = 0
    looked_at: int = 0
    again: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    forgotten: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    late_seconds: list[float] = field(default_factory=list)
    recovery_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def redelivered(self) -> int:
        """Deliveries beyond the first of each run."""
        return self.again.total()

    def violations(self, most: int | None = None) -> list[str]:
        """Every violation, or so many of each invariant at the most."""
        return [f"{part}: {line}" for part in INVARIANTS for line in getattr(self, part)[:most]]

    def must_hold(self) -> None:
        """Fail with every violation, if there is one."""
        found = self.violations()
        assert not found, f"{len(found)} violations\n" + "\n".join(found[:20])

    def __str__(self) -> str:
        zeros = ", ".join(f"{part.replace('_', '-')} {len(getattr(self, part))}" for part in INVARIANTS)
        return "\n".join(
            (
                f"{self.fires} fire times, {self.runs} runs ({_counts(self.states)}), {self.deliveries} deliveries;"
                f" faults: {_counts(self.faults)}",
                f"  violations: {zeros}",
                f"  delivered again: {self.redelivered} ({_counts(self.again)}); reports refused:"
                f" {self.refusals.total()} ({_counts(self.refusals)}); forgotten by the store:"
                f" {_counts(self.forgotten)}; ends looked at twice: {self.looked_at}",
                f"  late p50 {_quantile(self.late_seconds, 0.5):.3f} p99 {_quantile(self.late_seconds, 0.99):.3f}"
                f" max {max(self.late_seconds, default=0):.3f} s; from the fault to the next delivery"
                f" p50 {_quantile(self.recovery_seconds, 0.5):.2f} max {max(self.recovery_seconds, default=0):.2f} s",
            )
        )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0
