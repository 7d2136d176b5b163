"""Runs handed to a message bus: one action message for each attempt, and one more when a cancel is asked.

This module owns what an action says on the wire; how it travels is the bus's. The run's row is the outbox: it is
claimed before anything is sent, so a crash in between is found by its lease, and nothing is kept here. An attempt ends
elsewhere: `deliver` returns None once the broker has the message, and the worker's reports settle the run
(`services.reports`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from horarium.clock import Clock, Instant, to_micros, to_text
from horarium.errors import BusUnavailable, InvalidJob
from horarium.model import BusTarget, Deferred, Job, Outcome, Run, encode_payload, fraction, text_of
from horarium.policies import CANCEL_GRACE_SECONDS
from horarium.ports import Assignment, Bus, Control, Unconfirmed
from horarium.rules.settling import wait_seconds
from horarium.rules.tracing import handed_on

PUT_OFF_SECONDS = 2.0
"""How long a run waits for a bus that is down before it is tried again, and up to half as much more."""


ONE_OFF = "one-off"
"""The job name under which runs that belong to no job are on a bus."""

log = logging.getLogger("horarium")


class Action(Struct, rename="camel", omit_defaults=True):
    """The message to a worker. The first three fields are all that it needs; `token`, echoed in its reports, fences
    them exactly."""

    job_name: str
    run_id: str
    action: Literal["run", "cancel"]
    token: int
    attempt: int
    fire_at: str
    idempotency_key: str
    payload: Raw | UnsetType = UNSET
    traceparent: str | UnsetType = msgspec.field(default=UNSET, name="traceparent")


_encode = msgspec.json.Encoder().encode
_text = lru_cache(maxsize=128)(to_text)


def name_on_bus(run: Run) -> str:
    """The job name that its messages bear."""
    return ONE_OFF if run.job is None else text_of(run.job)


def message(run: Run, job: Job | None, action: Literal["run", "cancel"]) -> bytes:
    """The action as JSON text."""
    payload = _payload(run, job) if action == "run" else None
    return _encode(
        Action(
            job_name=name_on_bus(run),
            run_id=run.id,
            action=action,
            token=run.token,
            attempt=run.attempt,
            fire_at=_text(run.fire_at),
            idempotency_key=run.id,
            payload=UNSET if payload is None else Raw(payload),
            traceparent=handed_on(run) or UNSET,
        )
    )


def _payload(run: Run, job: Job | None) -> bytes | None:
    """The payload in force: the one given with the run, or that of its job."""
    if run.payload is not None:
        return run.payload
    return encode_payload(job.target.payload) if job is not None and isinstance(job.target, BusTarget) else None


def check_bus(target: BusTarget, buses: Iterable[str]) -> None:
    """Refuse a bus that a node with buses does not have: its runs would wait for ever. A node without any can't tell,
    for the dispatchers may be elsewhere. Raises InvalidJob."""
    known = sorted(buses)
    if known and target.bus not in known:
        names = ", ".join(map(repr, known))
        message = (
            f"target.bus: there is no bus {target.bus!r} here, only {names}; name one of them, or add it (bus_urls)"
        )
        raise InvalidJob(message, field="target.bus")


class BusDelivery:
    """The Target of one bus."""

    def __init__(self, bus: Bus, clock: Clock, handed_over: Callable[[Run, Instant], None]) -> None:
        self._bus = bus
        self._clock = clock
        self._handed_over = handed_over

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        run = assignment.run
        try:
            await self._bus.publish(name_on_bus(run), message(run, assignment.job, "run"), wait_seconds(run))
            self._handed_over(run, self._clock.now())
        except Unconfirmed as unknown:
            # A worker may have it and be at work: to send it again now would have it done twice. If none reports, the
            # lease of the claim ends.
            log.warning("run %s: not known to be delivered (%s); its lease tells", run.id, unknown)
        except asyncio.CancelledError:
            if not control.cancelled:
                raise
            log.warning("run %s: its node ended while it was delivered; its lease tells", run.id)  # as above
        except BusUnavailable as down:
            pause = PUT_OFF_SECONDS * (1 + 0.5 * fraction(run.id, run.token))
            return Deferred(self._clock.now() + to_micros(pause), f"not delivered: {down}")
        return None

    async def cancel(self, run: Run) -> None:
        """Tell the worker to stop. Raises BusUnavailable."""
        await self._bus.publish(name_on_bus(run), message(run, None, "cancel"), CANCEL_GRACE_SECONDS)

    async def close(self) -> None:
        await self._bus.close()
