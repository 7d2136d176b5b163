"""The marks of a run, a fire time or a job: one shape and one word for each outcome, the same on every page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import Instant
from horarium.dashboard.formats import duration
from horarium.model import Disposition, Event, Run, State
from horarium.operations.looking.attending import LATE_AFTER
from horarium.rules.approving import is_waiting, last_word
from horarium.rules.error_lines import error_line, first_line


class Mark(Struct, frozen=True):
    """`symbol` names the shape and the colour; `word` says the same in text."""

    symbol: str
    word: str


COMPLETED = Mark("completed", "Completed")
RETRIED = Mark("retried", "Completed after a retry")
FAILED = Mark("failed", "Failed")
RUNNING = Mark("running", "Running")
PENDING = Mark("pending", "Pending")
LATE = Mark("late", "Late")
RETRYING = Mark("retrying", "Will try again")
LOST = Mark("lost", "Lost")
MISSED = Mark("missed", "Missed")
NOT_STARTED = Mark("not_started", "Not started in time")
OVERLAP = Mark("skipped_overlap", "Skipped, overlap")
PAUSED = Mark("paused", "Paused")
SKIPPED_PAUSED = Mark("skipped_paused", "Skipped, paused")
REJECTED = Mark("cancelled", "Rejected")
NOT_APPROVED = Mark("not_started", "Not approved in time")
ASKED = Mark("asked", "Waits for a decision")
SKIPPED_BY_HAND = Mark("skipped_paused", "Skipped by hand")
CANCELLED = Mark("cancelled", "Cancelled")
CANCELLING = Mark("cancelling", "Cancelling")
PLANNED = Mark("planned", "Will run")
WONT = Mark("wont", "Will not run")
HELD = Mark("held", "Held")

LEGEND = (COMPLETED, FAILED, MISSED, OVERLAP, SKIPPED_PAUSED, RUNNING, PLANNED)

_BY_DISPOSITION = {
    Disposition.SKIPPED_OVERLAP: OVERLAP,
    Disposition.SKIPPED_PAUSED: SKIPPED_PAUSED,
    Disposition.SKIPPED_OVERRIDE: SKIPPED_BY_HAND,
    Disposition.REJECTED: REJECTED,
    Disposition.APPROVAL_EXPIRED: NOT_APPROVED,
    Disposition.MISSED: MISSED,
    Disposition.NOT_STARTED: NOT_STARTED,
    Disposition.CANCELLED: CANCELLED,
}
_BY_STATE = {
    State.FAILED: FAILED,
    State.RUNNING: RUNNING,
    State.CANCELLED: CANCELLED,
    State.CANCELLING: CANCELLING,
    State.SKIPPED: OVERLAP,
}
ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_TROUBLE = (FAILED, LOST, LATE, NOT_STARTED, MISSED, RETRYING, RUNNING, PENDING, CANCELLED)
"""Which mark is drawn first where there is room for a few."""


def mark_of(run: Run, now: Instant) -> Mark:
    """How a run stands."""
    if run.state is State.COMPLETED:
        return RETRIED if run.attempt > 1 else COMPLETED
    if run.state is State.PENDING:
        if run.attempt:
            return RETRYING
        if is_waiting(run):
            return ASKED
        if run.due_at > now:
            return PLANNED
        return LATE if now - run.due_at > LATE_AFTER else PENDING
    by_disposition = _BY_DISPOSITION.get(run.disposition) if run.disposition else None
    return by_disposition or _BY_STATE[run.state]


def why(run: Run, now: Instant) -> str:
    """One sentence with a number in it: what became of a run."""
    took = "" if run.started_at is None else duration((run.finished_at or now) - run.started_at)
    late = "" if run.started_at is None else f", {duration(max(run.started_at - run.due_at, 0))} late"
    match run.state:
        case State.COMPLETED:
            return f"Attempt {run.attempt}. {took}{late}."
        case State.RUNNING | State.CANCELLING:
            return f"Attempt {run.attempt}, for {took} so far."
        case State.PENDING if (asked := last_word(run)) is not None and is_waiting(run):
            return f"{asked.message[0].upper()}{asked.message[1:]}."
        case State.PENDING if run.due_at > now:
            return f"Attempt {run.attempt + 1} in {duration(run.due_at - now)}."
        case State.PENDING:
            return f"It waits for a worker of {run.queue}, {duration(now - run.due_at)} so far."
        case State.FAILED:
            return f"Attempt {run.attempt}: {error_line(run.error)}" if run.attempt else error_line(run.error)
    fires = f"{run.fires:,} fire times: " if run.fires > 1 else ""
    return fires + (first_line(run.error) or (run.history[-1].message if run.history else str(run.disposition or "")))


def summed_up(marks: Sequence[Mark]) -> str:
    """`7 completed, 3 failed`: what a strip shows, in words."""
    counts = Counter(mark.word for mark in marks)
    return ", ".join(f"{count} {word[0].lower()}{word[1:]}" for word, count in counts.most_common())


def worst_first(mark: Mark) -> int:
    """A key for sorting."""
    return _TROUBLE.index(mark) if mark in _TROUBLE else len(_TROUBLE)


def attempts_of(run: Run, events: Sequence[Event], now: Instant) -> list[tuple[int, Instant, Instant, str]]:
    """Number, begin, end, and how it ended, of each attempt that the history knows."""
    found: list[tuple[int, Instant, Instant, str]] = []
    begun: Instant | None = None
    for event in events:
        if event.state is State.RUNNING and begun is None:
            begun = event.at
        elif begun is not None and (event.state is State.PENDING or event.state in ENDED):
            how = event.kind.value if event.kind else event.state.value
            found.append((len(found) + 1, begun, event.at, "lost" if how == "lost" else _how(event.state)))
            begun = None
    if begun is not None:
        found.append((max(run.attempt, len(found) + 1), begun, max(run.finished_at or now, begun), _how(run.state)))
    return found


def _how(state: State) -> str:
    if state in (State.RUNNING, State.CANCELLING):
        return "running"
    return "failed" if state is State.PENDING else state.value
