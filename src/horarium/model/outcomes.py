"""The values that end an attempt."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant


class Succeeded(Struct, frozen=True):
    """The work is done. `result` is JSON text, or None."""

    result: bytes | None = None


class Failed(Struct, frozen=True):
    """The attempt failed. `retry_after_seconds`: the target asked for this delay. `trace`: the end of its
    traceback. `throttled`: it was asked too often, and that delay holds for everybody."""

    error: str
    retryable: bool = True
    retry_after_seconds: float | None = None
    result: bytes | None = None
    trace: str | None = None
    throttled: bool = False


class Deferred(Struct, frozen=True):
    """Not now: try again at `until`. Costs no attempt."""

    until: Instant
    reason: str = "deferred"


class Released(Struct, frozen=True):
    """Claimed, but never begun: given back, costs no attempt."""

    reason: str = "released"


class Refused(Struct, frozen=True):
    """This worker can't perform it, and one with other code may: put back for a while, costs no attempt."""

    reason: str


class Cancelled(Struct, frozen=True):
    """The work stopped because it was asked to."""

    reason: str = "cancelled"


Outcome = Succeeded | Failed | Deferred | Released | Refused | Cancelled
