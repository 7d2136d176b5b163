"""The effect of a ping on the runs of a job whose work is done elsewhere: decides, and touches nothing.

Each fire time makes a run that waits for a ping. A ping says that the work has begun, is done, or failed; which run it
is about follows from the unfinished ones: the one that the same execution began, else the newest that is due. An older
one stays and fails when its grace is over, so that a fire time at which nothing ran is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Cause, Failed, Job, Outcome, Run, RunChange, State, Succeeded, lasting
from horarium.rules.planning import owed_run
from horarium.rules.settling import noted, settle

ERROR_CHARS = 500
"""How much of the end of a ping's body is in the error of a run."""


class Sign(StrEnum):
    """The content of a ping."""

    SUCCESS = "success"
    START = "start"
    FAIL = "fail"
    LOG = "log"


class Ping(Struct, frozen=True):
    """A sign from work that is done elsewhere. `rid`: which execution it is about, where several may be under way.
    `status`: the exit status that it gave. `address`: where it came from."""

    sign: Sign
    rid: str | None = None
    status: int | None = None
    body: str = ""
    address: str = ""


def about(unfinished: Sequence[Run], ping: Ping, now: Instant) -> Run | None:
    """The run that a ping is about; None: nothing is due."""
    running = [run for run in unfinished if run.state is not State.PENDING]
    due = [run for run in unfinished if run.state is State.PENDING and run.due_at <= now]
    newest_due = max(due, key=lambda run: (run.fire_at, run.id), default=None)
    same = [run for run in running if run.worker == worker_of(ping)]
    if ping.sign is Sign.START:
        return newest_due or _newest(same)
    if ping.rid is not None:
        return _newest(same) or newest_due
    return _newest(same) or _newest(running) or newest_due


def _newest(runs: Sequence[Run]) -> Run | None:
    return max(runs, key=lambda run: (run.started_at or 0, run.id), default=None)


def unexpected(job: Job, fire_at: Instant, now: Instant) -> Run:
    """The run of a ping that came when nothing was due. If the ping is lost before it is written down there, the run
    waits for the next one, as long as any other does."""
    return replace(owed_run(job, fire_at, now, Cause.PING), due_at=now)


def heard(run: Run, job: Job, ping: Ping, now: Instant) -> RunChange:
    """The change of the run that the ping is about."""
    begun = run if run.state is not State.PENDING else _begun(run, ping, now)
    pinged = f"pinged from {ping.address}" if ping.address else "pinged"
    match ping.sign:
        case Sign.START if begun is run:
            after = _begun(noted(run, now, f"{pinged}: it began again"), ping, now)
        case Sign.START:
            after = noted(begun, now, f"{pinged}: it began")
        case Sign.LOG:
            after = noted(run, now, f"{pinged}: a note, in its log")
        case _:
            outcome = outcome_of(ping)
            said = "it is done" if isinstance(outcome, Succeeded) else "it failed"
            after = settle(noted(begun, now, f"{pinged}: {said}"), job, outcome, now)
    return RunChange(after, run.token, run.state)


def _begun(run: Run, ping: Ping, now: Instant) -> Run:
    return replace(
        run,
        state=State.RUNNING if run.state is State.PENDING else run.state,
        attempt=1,
        token=run.token + 1,
        worker=worker_of(ping),
        started_at=now,
        lease_expires_at=lasting(run.lease_seconds),
        deadline=None if run.execution_seconds is None else lasting(run.execution_seconds),
    )


def worker_of(ping: Ping) -> str:
    """Who performs the run, as it is shown."""
    return "ping" if ping.rid is None else f"ping {ping.rid}"


def outcome_of(ping: Ping) -> Outcome:
    """How the work ended."""
    if ping.sign is Sign.SUCCESS:
        return Succeeded()
    how = "reported as failed" if ping.status is None else f"exit status {ping.status}"
    said = ping.body.strip()[-ERROR_CHARS:]
    return Failed(f"{how}: {said}" if said else how, retryable=False)
