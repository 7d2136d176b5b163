"""Claims that ended before the work began, as the process that held them knows: they cost no attempt.

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
    last = run.history[-1] if run.history else None
    if run.state is not State.PENDING or last is None or last.kind is not EventKind.LOST:
        return None
    told = replace(last, message=NEVER_BEGUN, kind=EventKind.RELEASED)
    spent = 1 if retry_of(run, job).silences_max is None else 0
    due_at = min(run.due_at, now)  # it was no neighbour of work that killed its process
    return replace(run, attempt=run.attempt - spent, error=None, due_at=due_at, history=(*run.history[:-1], told))
