"""Which notifications of a channel are sent now, as one message, and which wait: `group`, pure.

Notifications are of one kind if they are of the same event of the same job. The first of a kind waits a moment for
more; then all that there are become one line of a message, which says how many. After that the kind is quiet for a
while: later events are one message at the end of it. Troubles of a job are quiet for as long as the channel says, what
is none for a minute at most; failures no longer once the job has worked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant, to_instant, to_micros
from horarium.model import Occasion
from horarium.model.channels import EVENTS_MAX, MEMBERS_MAX, MESSAGE_CHARS_MAX, Channel, Letter, Told

WAITS_MAX = 5
"""While more of the same come in, the first waits for them up to this number of `group_seconds`."""
CALM_SECONDS_MAX = 60.0
"""For how long an event that is no trouble is quiet at most: a decision that is wanted can't wait for an hour."""
FAILURES = frozenset({Occasion.FAILED, Occasion.NOT_STARTED})
"""Over with the next success of the job."""
TROUBLES = FAILURES | {Occasion.ATTEMPT_FAILED, Occasion.LATE, Occasion.OVERDUE, Occasion.MISSED}
NEVER: Mapping[str, Instant] = MappingProxyType({})
TEST = "test"
"""The event of a message that was asked for: it waits for nothing."""


class Item(Struct, frozen=True):
    """A notification that has not been sent. `at`: when it was made."""

    id: str
    at: Instant
    told: Told

    @property
    def kind(self) -> str:
        return kind_of(self.told)


def kind_of(told: Told) -> str:
    """The kind of a notification."""
    return f"{told.event}/{told.job or told.message}"


def still_told(told_at: Mapping[str, Instant], succeeded: Mapping[str, Instant]) -> dict[str, Instant]:
    """Of these notes of messages those that keep something quiet: not those of failures before the last success of the
    job."""
    return {kind: at for kind, at in told_at.items() if not _is_over(kind, at, succeeded)}


def _is_over(kind: str, at: Instant, succeeded: Mapping[str, Instant]) -> bool:
    event, _, job = kind.partition("/")
    return event in FAILURES and succeeded.get(job, at) > at


def ready_at(
    kind: str, items: Sequence[Item], told_at: Mapping[str, Instant], channel: Channel, now: Instant
) -> Instant:
    """From when on these, all of one kind, may be sent. An instant that lies ahead, from a clock that was wrong, counts
    as now."""
    if items[0].told.event == TEST:
        return now
    seconds = channel.quiet_seconds
    quiet = to_micros(seconds if items[0].told.event in TROUBLES else min(seconds, CALM_SECONDS_MAX))
    wait = to_micros(channel.group_seconds)
    first = min(now, min(item.at for item in items))
    last = min(now, max(item.at for item in items))
    gathered = min(last + wait, first + WAITS_MAX * wait)
    before = told_at.get(kind)
    return gathered if before is None or before > now else max(gathered, before + quiet)


def group(
    own: Item,
    others: Sequence[Item],
    told_at: Mapping[str, Instant],
    channel: Channel,
    name: str,
    now: Instant,
    succeeded: Mapping[str, Instant] = NEVER,
) -> Letter | Instant:
    """The message of `own` and all others that may be sent now, or from when on `own` may be sent. `succeeded`: the
    last success of each job."""
    told_at = still_told(told_at, succeeded)
    kinds: dict[str, list[Item]] = {own.kind: [own]}
    for item in others if own.told.event != TEST else ():
        kinds.setdefault(item.kind, []).append(item)
    at = ready_at(own.kind, kinds[own.kind], told_at, channel, now)
    if at > now:
        return at
    events: list[Told] = []
    members: list[str] = []
    for kind, items in kinds.items():
        room = MEMBERS_MAX - len(members)
        if len(events) < EVENTS_MAX and room > 0 and ready_at(kind, items, told_at, channel, now) <= now:
            events.append(_together(items[:room], succeeded))
            members += (item.id for item in items[:room] if item is not own)
    return Letter(own.id, name, now, tuple(sorted(events, key=lambda told: told.at)), tuple(members))


def _together(items: Sequence[Item], succeeded: Mapping[str, Instant]) -> Told:
    last = max(items, key=lambda item: (item.at, item.id)).told
    count = sum(item.told.count for item in items)
    message = last.message
    if len(message) > MESSAGE_CHARS_MAX:
        message = message[: MESSAGE_CHARS_MAX - 4] + " ..."
    times = f" ({count} times)" if len(items) > 1 else ""
    since = "; it has worked since" if _is_over(kind_of(last), happened_at(last), succeeded) else ""
    return replace(last, count=count, message=f"{message}{times}{since}")


def happened_at(told: Told) -> Instant:
    """The instant of an event."""
    return to_instant(datetime.fromisoformat(told.at))
