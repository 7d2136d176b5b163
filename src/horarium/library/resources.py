"""The methods of `Scheduler` beside jobs and runs: for approvals, faults, calendars, channels, feeds, holds, overrides,
queues and rate limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from horarium.clock import Clock, to_instant, to_text
from horarium.errors import InvalidRequest
from horarium.library.named import Part, in_name_of_actor
from horarium.library.values import Run, id_of
from horarium.model import Name
from horarium.model.calendars import Calendar, shown_calendar
from horarium.model.channels import AnyChannel
from horarium.model.feeds import Feed
from horarium.model.holds import Hold
from horarium.model.labels import Labels
from horarium.model.overrides import OVERRIDES_MAX
from horarium.model.targets import QUEUE_CHARS_MAX, named_queue
from horarium.operations.bounds.listing import pages_of
from horarium.policies import KEY_LENGTH_MAX, FairWeights, Limit
from horarium.ports import PAGE_MAX
from horarium.wire.channels import shown_channel
from horarium.wire.faults import converted
from horarium.wire.overrides import OverrideView, override_view, override_views
from horarium.wire.rates import is_key, override_of, rate_view, read_limit

if TYPE_CHECKING:
    from horarium.operations.looking.attending import Fault
    from horarium.wire.approvals import ApprovalView, Decision


class RateMethods(Part):
    """The rate limits of a scheduler, as plain data: the fields of docs/rates.md."""

    @in_name_of_actor
    async def set_rate(
        self,
        key: str,
        rate: str | Limit,
        *,
        burst: int | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> dict[str, Any]:
        """Have this limit (`"100/1m"`) hold for the key, instead of what jobs and runs say, until then or for good.
        Runs that wait get new places in line. Raises InvalidRequest."""
        if not is_key(key):
            raise InvalidRequest(f"key: {key[:200]!r} is not 1 to {KEY_LENGTH_MAX} characters", field="key")
        fields = read_limit(rate) if isinstance(rate, str) else msgspec.to_builtins(rate)
        limit: Limit = converted(fields if burst is None else {**fields, "burst": burst}, Limit)
        override = override_of(limit.max, limit.per_seconds, limit.burst, until)
        return _shown_rate(key, await self._operations.rates.put(key, override), self._operations.clock)

    async def list_rates(self, prefix: str = "") -> list[dict[str, Any]]:
        """The keys in use that begin with this: what they allow, and when they open."""
        pages = pages_of(lambda after: self._operations.rates.page(prefix, after, PAGE_MAX))
        return [_shown_rate(key, bucket, self._operations.clock) async for page in pages for key, bucket in page]

    @in_name_of_actor
    async def reset_rate(self, key: str, *, actor: str | None = None) -> None:
        """Have what jobs and runs say hold again for the key. Raises NotFound where that is so."""
        await self._operations.rates.reset(key)


def _shown_rate(key: str, bucket: Any, clock: Clock) -> dict[str, Any]:
    return msgspec.structs.asdict(rate_view(key, bucket, clock))


class QueueMethods(Part):
    """What is set for the queues of a scheduler. A queue is named as runs name theirs (`handler/report`); a plain name
    is a worker's queue."""

    @in_name_of_actor
    async def set_fair_weights(
        self, queue: str, weights: Mapping[str, int], *, actor: str | None = None
    ) -> dict[str, int]:
        """Have fairness keys take these numbers of turns (1 to 1,000) next to the 1 of every other key. Raises
        InvalidRequest."""
        from horarium.operations.settling.turns import QueueSettings

        settings = QueueSettings(converted(weights, FairWeights, "weights"))
        return (await self._operations.queues.put(_queue(queue), settings)).fair_weights

    async def fair_weights(self, queue: str) -> dict[str, int]:
        """The weights that are set for a queue's fairness keys."""
        return (await self._operations.queues.get(_queue(queue))).fair_weights


def _queue(queue: str) -> str:
    if (found := named_queue(queue)) is None:
        raise InvalidRequest(f"queue: {queue[:200]!r} is not 1 to {QUEUE_CHARS_MAX} characters", field="queue")
    return found


class OverrideMethods(Part):
    """The overrides of a scheduler's jobs (docs/overrides.md)."""

    @in_name_of_actor
    async def skip_fire(
        self, name: str, fire_at: datetime, reason: str | None = None, *, actor: str | None = None
    ) -> OverrideView:
        """The job does not run for this fire time. Raises NotFound, NoSuchFire where its rule does not yield it,
        AlreadyBegun."""
        return override_view(await self._operations.overriding.skip(name, fire_at, reason))

    @in_name_of_actor
    async def move_fire(
        self, name: str, fire_at: datetime, to: datetime, reason: str | None = None, *, actor: str | None = None
    ) -> OverrideView:
        """The run of this fire time is due at another instant. Raises as `skip_fire`, and InvalidRequest."""
        return override_view(await self._operations.overriding.move(name, fire_at, to, reason))

    @in_name_of_actor
    async def unskip_fire(self, name: str, fire_at: datetime, *, actor: str | None = None) -> None:
        """The fire time is as its rule has it again, whether it was skipped or moved. Raises as `skip_fire`."""
        await self._operations.overriding.lift(name, fire_at)

    async def list_overrides(self, name: str) -> list[OverrideView]:
        """The fire times of a job that are skipped or moved, earliest first. Raises NotFound."""
        found, _ = await self._operations.overriding.page(name, None, OVERRIDES_MAX)
        return override_views(found)


class HoldMethods(Part):
    """The holds of a scheduler, as plain data: the fields of docs/holds.md."""

    @in_name_of_actor
    async def add_hold(self, hold: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Let nothing begin of what its scope says, such as `{"scope": {"queue": "images"}, "reason": "moving"}`.
        Raises InvalidRequest."""
        from horarium.wire.holds import HoldDefinition

        return self._shown_hold(await self._operations.holds.add(converted(hold, HoldDefinition)))

    async def get_hold(self, id: str) -> dict[str, Any]:
        """The hold of that id, ended or not. Raises NotFound."""
        return self._shown_hold(await self._operations.holds.get(id))

    async def list_holds(self, active: bool | None = None) -> list[dict[str, Any]]:
        """Those that have not ended, oldest first; with `active`, those that are in force, or are not."""
        page = await self._operations.holds.page(active, None, 1_000)
        return [self._shown_hold(hold) for hold in page.items]

    @in_name_of_actor
    async def update_hold(self, id: str, changes: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Change `until` (None: until it is lifted) or `reason`. Raises NotFound, InvalidRequest, and Conflict for one
        that has ended."""
        from horarium.wire.holds import HoldPatch

        return self._shown_hold(await self._operations.holds.update(id, converted(changes, HoldPatch)))

    @in_name_of_actor
    async def lift_hold(self, id: str, *, actor: str | None = None) -> None:
        """End it: what waited goes on. Raises NotFound."""
        await self._operations.holds.lift(id)

    def _shown_hold(self, hold: Hold) -> dict[str, Any]:
        from horarium.wire.holds import hold_view

        shown: dict[str, Any] = msgspec.to_builtins(hold_view(hold, self._operations.clock.now()))
        return shown


class FeedMethods(Part):
    """The feeds of a scheduler, as plain data: the fields of docs/feeds.md."""

    @in_name_of_actor
    async def create_feed(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        jobs: Sequence[str] = (),
        actor: str | None = None,
    ) -> dict[str, Any]:
        """A new feed of jobs with these labels, or of these names. `path`, under the address of a server on the same
        store, is shown this once. Raises AlreadyExists, InvalidRequest."""
        named, wanted = converted(name, Name, "name"), converted(jobs, tuple[Name, ...], "jobs")
        with_labels = converted(labels or {}, Labels, "labels")
        feed, key = await self._operations.feeds.create(named, with_labels, wanted)
        return {**_shown_feed(feed, False), "path": f"/feed/{key}.ics"}

    async def list_feeds(self) -> list[dict[str, Any]]:
        """All feeds, by name, without their addresses; `ended`: with the key that made it."""
        pages = pages_of(lambda after: self._operations.feeds.page(after, PAGE_MAX))
        return [_shown_feed(*listed) async for page in pages for listed in page]

    @in_name_of_actor
    async def revoke_feed(self, name: str, *, actor: str | None = None) -> None:
        """Its address is gone. Raises NotFound."""
        await self._operations.feeds.revoke(name)


def _shown_feed(feed: Feed, ended: bool) -> dict[str, Any]:
    made = {"created_at": to_text(feed.created_at), "by": feed.by, "ended": ended}
    return {"name": feed.name, "labels": feed.labels, "jobs": feed.jobs, **made}


class ChannelMethods(Part):
    """The channels of a scheduler, as plain data: the fields of docs/notifications.md, secrets masked."""

    @in_name_of_actor
    async def put_channel(self, name: str, channel: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Define the channel `name`, or replace it: `{"type": "webhook", "url": ...}`, `{"type": "email", "to": [...]}`
        or `{"type": "apprise", "url": ...}`. Raises InvalidRequest."""
        defined, _ = await self._operations.channels.put(converted(name, Name, "name"), converted(channel, AnyChannel))
        return shown_channel(name, defined)

    async def get_channel(self, name: str) -> dict[str, Any]:
        """The channel of that name. Raises NotFound."""
        return shown_channel(name, await self._operations.channels.get(name))

    async def list_channels(self) -> list[dict[str, Any]]:
        """All channels, by name."""
        pages = pages_of(lambda after: self._operations.channels.page(after, PAGE_MAX))
        return [shown_channel(name, channel) async for page in pages for name, channel in page]

    @in_name_of_actor
    async def delete_channel(self, name: str, *, actor: str | None = None) -> None:
        """Remove a channel. Raises NotFound."""
        await self._operations.channels.delete(name)

    @in_name_of_actor
    async def test_channel(self, name: str, *, actor: str | None = None) -> Run:
        """Send a test message: the run that does it, in one attempt. Raises NotFound."""
        return Run(await self._operations.channels.test(name))

    @in_name_of_actor
    async def send_by_channel(self, name: str, by: str, *, actor: str | None = None) -> Run:
        """Send by the channel `by` the events that the channel `name` did not take: the run that does it. Raises
        NotFound where there are none, InvalidRequest for a wrong `by`."""
        return Run(await self._operations.channels.send_by(name, by))


class CalendarMethods(Part):
    """The calendars of a scheduler, as plain data: the fields of docs/calendars.md."""

    @in_name_of_actor
    async def put_calendar(self, name: str, calendar: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Define the calendar `name`, or replace it; jobs that use it follow within seconds. Raises InvalidRequest."""
        defined, _ = await self._operations.calendars.put(converted(name, Name, "name"), converted(calendar, Calendar))
        return shown_calendar(name, defined)

    async def compare_calendar(self, name: str, calendar: Mapping[str, Any]) -> list[dict[str, Any]]:
        """How the fire times of jobs within 400 days would change with these days: of each job that would, `added`,
        `removed` and `moved`. Nothing is written. Raises InvalidRequest."""
        changes, _ = await self._operations.calendars.compare(name, converted(calendar, Calendar))
        return [msgspec.to_builtins(change) for change in changes]

    async def get_calendar(self, name: str) -> dict[str, Any]:
        """The calendar of that name. Raises NotFound."""
        return shown_calendar(name, await self._operations.calendars.get(name))

    async def list_calendars(self) -> list[dict[str, Any]]:
        """All calendars, by name."""
        pages = pages_of(lambda after: self._operations.calendars.page(after, PAGE_MAX))
        return [shown_calendar(name, calendar) async for page in pages for name, calendar in page]

    @in_name_of_actor
    async def delete_calendar(self, name: str, *, actor: str | None = None) -> None:
        """Remove a calendar. Raises NotFound, and Conflict while jobs use it."""
        await self._operations.calendars.delete(name)


class AttentionMethods(Part):
    """Faults and their acknowledgements, as plain data: the fields of `GET /api/v1/attention`."""

    async def attention(self) -> list[dict[str, Any]]:
        """The faults, worst first: failing and late jobs, queues that no worker serves, lost nodes, channels that take
        no messages."""
        faults, _ = await self._operations.attending.list_all()
        return [_shown_fault(fault) for fault in faults]

    @in_name_of_actor
    async def acknowledge_cause(
        self, cause: str, reason: str, until: datetime | None = None, *, actor: str | None = None
    ) -> dict[str, Any]:
        """Take note of a cause, such as `failing/nightly`, until then or for a day. Raises NotFound,
        InvalidRequest."""
        at = None if until is None else to_instant(until)
        return _shown_fault(await self._operations.attending.acknowledge(cause, reason, at))

    @in_name_of_actor
    async def reopen_cause(self, cause: str, *, actor: str | None = None) -> None:
        """Take that back. Raises NotFound."""
        await self._operations.attending.reopen(cause)


def _shown_fault(fault: Fault) -> dict[str, Any]:
    ack = fault.acknowledged
    noted = ack and {"by": ack.by, "reason": ack.reason, "at": to_text(ack.at), "until": to_text(ack.until)}
    return {
        "cause": fault.cause.key, "since": to_text(fault.cause.since), "text": fault.text, "acknowledged": noted,
    }  # fmt: skip


class ApprovalMethods(Part):
    """The approvals of a scheduler's jobs (docs/approvals.md)."""

    async def list_approvals(self) -> list[ApprovalView]:
        """Pending decisions, the soonest end first."""
        from horarium.wire.approvals import approval_view

        pages = pages_of(lambda after: self._operations.approving.page(None, after, PAGE_MAX))
        waiting = [each async for page in pages for each in page]
        return [approval_view(each) for each in waiting]

    @in_name_of_actor
    async def decide(
        self,
        run_id: Run | str,
        decision: Decision,
        reason: str | None = None,
        *,
        actor: str | None = None,
    ) -> Run:
        """Let a run begin that waits for it, or not; or say how many of the fire times run that a job missed (`none`,
        `latest`, `all`): the first of their rows. Raises NotFound, AlreadyDecided, and Forbidden where who acts
        asked for it and the job wants four eyes."""
        from horarium.wire.approvals import Decision

        said = converted(decision, Decision, "decision")
        return Run(await self._operations.approving.decide(id_of(run_id), said, reason))
