"""How far runs may follow from one another: in a row, and in breadth (docs/architecture/follow-ups.md)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Instant
from horarium.errors import InvalidRequest
from horarium.model import (
    Cause,
    Event,
    HandlerTarget,
    Job,
    Occasion,
    Run,
    RunChange,
    RunFollow,
    State,
    encode_payload,
    one_off_run,
    own_labels,
    run_id,
)
from horarium.rules.fairness import turn_later
from horarium.rules.keys import Source, resolve
from horarium.rules.tracing import handed_on, marked, trace_of

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


def then_key(about: str, index: int) -> str:
    """The unique key of the run that follows as the one of this number in `then`, of a run or of a round of a batch."""
    return f"{about}/{Occasion.COMPLETED}/then:{index}"


def with_then(changes: Sequence[RunChange], now: Instant) -> Sequence[RunChange]:
    """The changes, those that complete a run with the runs that it brings along itself (`RunPolicy.then`)."""
    if not [True for change in changes if change.run.policy is not None]:
        return changes
    return [_with_then(change, now) for change in changes]


def _with_then(change: RunChange, now: Instant) -> RunChange:
    run = change.run
    if run.policy is None or not run.policy.then or run.state is not State.COMPLETED or change.state is run.state:
        return change
    result, traced, parent = run.result, trace_of(run), handed_on(run)
    if result is not None and result.lstrip()[:1] != b"{":
        result = b'{"result":' + result + b"}"
    runs = [then_run(each, then_key(run.id, index), now, result) for index, each in enumerate(run.policy.then)]
    if traced is not None and parent is not None:
        runs = [marked(each, parent, traced.recorded) for each in runs]
    return replace(change, follow_ups=(*change.follow_ups, *runs))


def then_run(follow: RunFollow, key: str, now: Instant, result: bytes | None) -> Run:
    """The run that follows under this key."""
    due_at = min(now + follow.delay, INSTANT_MAX)
    run = one_off_run(
        id=run_id(key, due_at),
        queue=follow.queue,
        due_at=due_at,
        now=now,
        priority=follow.priority,
        payload=result if follow.payload is None else encode_payload(follow.payload),
        policy=follow.policy,
        unique_key=key,
        cause=Cause.FOLLOW_UP,
    )
    keys = {"concurrency_key": follow.concurrency_key, "concurrency_max": follow.concurrency_max}
    run = replace(run, **keys, rates=follow.rates, fair=follow.fair)
    return turn_later(_filled(run) if follow.payload is None else run)


def _filled(run: Run) -> Run:
    """The run, its keys filled in from the result that it carries. One of which a part is missing stays as it is
    written: the run follows all the same."""
    source = Source(None, run.queue, own_labels(run), HandlerTarget(run.queue.removeprefix("handler/")), run.payload)

    def filled(key: str) -> str:
        try:
            return resolve(key, source, "then")
        except InvalidRequest:
            return key

    return replace(
        run,
        rates=tuple(replace(rate, key=filled(rate.key)) for rate in run.rates),
        concurrency_key=None if run.concurrency_key is None else filled(run.concurrency_key),
        fair=None if run.fair is None else filled(run.fair),
    )


def with_end_of_chain(run: Run, jobs: Sequence[str], depth: int, now: Instant) -> Run:
    """The run, whose history says which jobs it does not trigger."""
    far = f"{DEPTH_MAX} runs deep" if depth == DEPTH_MAX else "where many follow from each run"
    said = f"the chain ends here, {far}: {', '.join(jobs)} not triggered"
    events = list(run.history)
    if run.finished and not (events and events[-1].at == now and events[-1].state is run.state):
        events.append(Event(now, run.state, run.error or str(run.disposition or run.state)))
    return replace(run, history=(*events, Event(now, run.state, said)))
