"""A hold as its owner writes it, and as it is shown."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from horarium.clock import Instant, moment, to_datetime
from horarium.errors import InvalidRequest
from horarium.model.holds import HeldMissed, HeldRunning, Hold, HoldRepeat, HoldScope
from horarium.rules.holds import FOREVER, end_of, named_host, stretch_at
from horarium.wire.definitions import Moment
from horarium.wire.faults import instant_of

REASON_CHARS_MAX = 500
STRETCH_SECONDS_MAX = 366 * 24 * 3600

Reason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]


class HoldDefinition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be held, when, and why. `from` left out: from now on; `until` left out or null: until it is lifted;
    with `repeat`, in stretches of that length, each from a fire time of the trigger on."""

    scope: HoldScope
    reason: Reason
    begins_at: Moment | None = field(default=None, name="from")
    until: Moment | None = None
    repeat: HoldRepeat | None = None
    missed: HeldMissed = HeldMissed.CATCH_UP
    running: HeldRunning = HeldRunning.FINISH


class HoldPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be changed of a hold. `until`: null is until it is lifted."""

    until: Moment | UnsetType | None = UNSET
    reason: Reason | UnsetType = UNSET


class HoldView(Struct):
    """A hold. `active`: whether it is in force now; `active_until`: until when, null where that is not known.
    `breaker`: it was made by the circuit breaker."""

    id: str
    scope: HoldScope
    begins_at: datetime = field(name="from")
    until: datetime | None
    repeat: HoldRepeat | None
    missed: HeldMissed
    running: HeldRunning
    reason: str
    active: bool
    active_until: datetime | None
    created_at: datetime
    created_by: str | None
    lifted_at: datetime | None
    breaker: bool


def hold_from(definition: HoldDefinition, *, id: str, now: Instant, by: str | None) -> Hold:
    begins_at = now if definition.begins_at is None else instant_of(definition.begins_at, "from")
    if definition.repeat is not None and not 0 < definition.repeat.seconds <= STRETCH_SECONDS_MAX:
        message = f"repeat.seconds: must be more than 0 and at most {STRETCH_SECONDS_MAX}"
        raise InvalidRequest(message, field="repeat.seconds")
    return Hold(
        id=id,
        scope=definition.scope,
        begins_at=begins_at,
        ends_at=checked_end(definition.until, begins_at, now),
        repeat=definition.repeat,
        missed=definition.missed,
        running=definition.running,
        reason=definition.reason,
        created_at=now,
        by=by,
    )


def checked_end(until: datetime | None, begins_at: Instant, now: Instant) -> Instant | None:
    """The end of a hold. Raises InvalidRequest for one that has passed, or lies before the begin."""
    if until is None:
        return None
    ends_at = instant_of(until, "until")
    if ends_at <= max(begins_at, now):
        raise InvalidRequest("until: must lie ahead, and after `from`; to end a hold now, lift it", field="until")
    return ends_at


def checked_scope(scope: HoldScope) -> HoldScope:
    """The scope, its host as those of requests are compared. Raises InvalidRequest unless it says exactly one thing."""
    given = [name for name in HoldScope.__struct_fields__ if getattr(scope, name)]
    if len(given) != 1:
        said = "nothing" if not given else ", ".join(given)
        message = f"scope: give exactly one of all, job, labels, queue, host and worker, not {said}"
        raise InvalidRequest(message, field="scope")
    if scope.host is None:
        return scope
    host = named_host(scope.host)
    if host is None:
        message = f"scope.host: {scope.host!r} is no host such as api.example.com or api.example.com:8443"
        raise InvalidRequest(message, field="scope.host")
    return replace(scope, host=host)


def hold_view(hold: Hold, now: Instant) -> HoldView:
    """The hold as it is at this instant."""
    stretch = stretch_at(hold, now)
    return HoldView(
        id=hold.id,
        scope=hold.scope,
        begins_at=to_datetime(hold.begins_at),
        until=moment(hold.ends_at),
        repeat=None if hold.repeat is None else _as_given(hold.repeat),
        missed=hold.missed,
        running=hold.running,
        reason=hold.reason,
        active=stretch is not None,
        active_until=None if stretch is None or stretch.ends_at >= FOREVER else to_datetime(stretch.ends_at),
        created_at=to_datetime(hold.created_at),
        created_by=hold.by,
        lifted_at=moment(hold.lifted_at),
        breaker=hold.probing is not None,
    )


def _as_given(repeat: HoldRepeat) -> HoldRepeat:
    from horarium.rules.calendars import without_days  # as rarely as a hold repeats

    return HoldRepeat(without_days(repeat.trigger), repeat.seconds)


def is_over(hold: Hold, now: Instant) -> bool:
    """Whether it has ended for good."""
    return end_of(hold) <= now
