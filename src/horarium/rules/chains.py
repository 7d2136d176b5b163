"""How far runs may follow from one another: in a row, and in breadth (docs/architecture/follow-ups.md)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Event, Job, Occasion, Run, State

CHAIN = "follow/"
DEPTH_MAX = 100
"""Runs that may follow from one another, each from the end of the one before."""
WIDTH_MAX = 10_000
"""About how many runs may follow from one where each triggers several."""
AT_END: dict[State, tuple[Occasion, ...]] = {
    State.COMPLETED: (Occasion.RECOVERED, Occasion.COMPLETED),
    State.FAILED: (Occasion.NOT_STARTED, Occasion.FAILED, Occasion.ATTEMPT_FAILED),
    State.CANCELLED: (Occasion.CANCELLED,),
    State.SKIPPED: (Occasion.MISSED, Occasion.APPROVAL_EXPIRED),
}
"""The occasions of each end, the most specific first: a channel gets one message of one end."""


def chain_key(depth: int, key: str) -> str:
    """The unique key of the run that a follow-up of this depth and key asks for."""
    return f"{CHAIN}{depth}/{key}"


def depth_of(run: Run) -> int:
    """How many runs it follows from, one after the other."""
    key = run.unique_key
    if key is None or not key.startswith(CHAIN):
        return 0
    depth = key.removeprefix(CHAIN).partition("/")[0]
    return int(depth) if depth.isascii() and depth.isdigit() and len(depth) <= 3 else 0


def step_of(job: Job) -> int:
    """By how much what follows from a run of this job lies deeper: by one, or, where one run may trigger several jobs,
    by the part of DEPTH_MAX that their number is of WIDTH_MAX, as powers."""

    def triggered(*occasions: Occasion) -> int:
        return sum(follow.trigger is not None for each in occasions for follow in job.on.get(each, ()))

    attempts = triggered(Occasion.ATTEMPT_FAILED)
    at_end = max(triggered(*some) - (attempts if Occasion.ATTEMPT_FAILED in some else 0) for some in AT_END.values())
    before = triggered(Occasion.LATE, Occasion.OVERDUE, Occasion.APPROVAL_WANTED)
    most = at_end + before + attempts * job.retry.attempts_max
    return 1 if most <= 1 else ceil(DEPTH_MAX * log(most, WIDTH_MAX))


def with_end_of_chain(run: Run, jobs: Sequence[str], depth: int, now: Instant) -> Run:
    """The run, whose history says which jobs it does not trigger."""
    far = f"{DEPTH_MAX} runs deep" if depth == DEPTH_MAX else "where many follow from each run"
    said = f"the chain ends here, {far}: {', '.join(jobs)} not triggered"
    events = list(run.history)
    if run.finished and not (events and events[-1].at == now and events[-1].state is run.state):
        events.append(Event(now, run.state, run.error or str(run.disposition or run.state)))
    return replace(run, history=(*events, Event(now, run.state, said)))
