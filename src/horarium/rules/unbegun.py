"""Claims that a rescuer ended, and no other was made since: only a claim raises the token, so that the token of the
last claim still says whose the run is. A report under it counts as though nothing had happened.

And claims that ended before the work began, as the process that held them knows: they cost no attempt.

A process that was frozen for longer than its leases finds runs in its hands that it had claimed and not begun. To
others they look like runs of a lost worker; only this process can say otherwise.
"""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import CLAIMED, EventKind, Job, Released, Run, State
from horarium.rules.settling import retry_of, settle

NEVER_BEGUN = "released: its lease ended before it was begun"


def unbegun(run: Run, token: int, job: Job | None, now: Instant) -> Run | None:
    """The run as it would be had the claim under this token been released instead. None: there is nothing to give back,
    since the run went on."""
    if run.token != token:
        return None
    if run.state in CLAIMED:
        return settle(run, job, Released(NEVER_BEGUN), now)
    if not was_put_back(run):
        return None
    told = replace(run.history[-1], message=NEVER_BEGUN, kind=EventKind.RELEASED)
    spent = 1 if retry_of(run, job).silences_max is None else 0
    due_at = min(run.due_at, now)  # it was no neighbour of work that killed its process
    return replace(run, attempt=run.attempt - spent, error=None, due_at=due_at, history=(*run.history[:-1], told))


def was_put_back(run: Run) -> bool:
    """True if a rescuer ended the last claim of this run, and nothing has happened since."""
    return run.state is State.PENDING and bool(run.history) and run.history[-1].kind is EventKind.LOST


def as_claimed(run: Run, token: int, job: Job | None) -> Run | None:
    """The run as it was under its last claim, if that is of this token and a rescuer has ended it. Else None."""
    if run.token != token or not was_put_back(run):
        return None
    spent = 0 if retry_of(run, job).silences_max is None else 1
    history, started_at, worker = run.history[:-1], None, None
    if history and history[-1].state is State.RUNNING:
        started_at = history[-1].at
        if history[-1].kind is None:
            worker = history[-1].message.partition(" claimed by ")[2]
            history = history[:-1]
    return replace(
        run,
        state=State.RUNNING,
        attempt=run.attempt + spent,
        started_at=started_at,
        worker=worker,
        error=None,
        history=history,
    )
