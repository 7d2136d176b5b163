"""The delivery of runs of the queue `follow`: each asks for a run of another job (docs/architecture/follow-ups.md).

The run that is asked for has a unique key made of the follow-up's own, so that a follow-up which is performed twice
(its node died, an answer was lost) still leads to one run.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from horarium.errors import CallerError, HorariumError, NotFound
from horarium.model import Failed, Outcome, Succeeded
from horarium.operations.jobs.jobs import JobOperations
from horarium.ports import Assignment, Control
from horarium.rules.chains import chain_key


class Wanted(Struct, frozen=True):
    """The payload of a run of this queue."""

    job: str
    depth: int
    payload: msgspec.Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Wanted).decode


class FollowDelivery:
    """Triggers the jobs that follow from ends of other jobs' runs."""

    def __init__(self, jobs: JobOperations) -> None:
        self._jobs = jobs

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        """See `ports.Delivery`."""
        run = assignment.run
        try:
            wanted = _decode(run.payload or b"")
        except msgspec.DecodeError as error:
            return Failed(f"not a follow-up: {error}", retryable=False)
        payload = None if isinstance(wanted.payload, UnsetType) else bytes(wanted.payload)
        key = chain_key(wanted.depth, run.unique_key or run.id)
        try:
            made = await self._jobs.trigger_job(wanted.job, payload, follows=key)
        except (NotFound, CallerError) as error:
            return Failed(error.message, retryable=False)
        except HorariumError as error:
            return Failed(error.message)
        return Succeeded(msgspec.json.encode({"run": made.id}))

    async def close(self) -> None:
        """There is nothing to close."""
