"""Channels: kept as records, checked when they are written, tried by a message.

A channel is the record `channel/NAME`. Its secrets are shown as asterisks, which keep the stored value when they are
sent back for the same place, and are refused for any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from horarium.clock import Instant, to_text
from horarium.errors import NotFound
from horarium.model import Run, RunPolicy, uuid7
from horarium.model.channels import CHANNEL, UNTOLD, AnyChannel, Told, Untold
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.listing import pages_of
from horarium.operations.writing.auditing import told, told_runs
from horarium.operations.writing.contention import RACES_MAX, contended
from horarium.operations.writing.context import Context
from horarium.operations.writing.signalling import announce_runs
from horarium.policies import Retry
from horarium.ports import PAGE_MAX, Page
from horarium.rules.following import notify_run
from horarium.rules.grouping import TEST
from horarium.wire.channels import keep_channel_secrets, shown_channel

ChannelCheck = Callable[[AnyChannel], None]
"""Raises InvalidRequest for a channel that may not be used here (an address that is not allowed, a bad secret). It may
take long (a library is imported), so it is called in a thread."""

decode_channel = msgspec.json.Decoder(AnyChannel).decode
_decode_untold = msgspec.json.Decoder(Untold).decode
_ONCE = RunPolicy(retry=Retry(attempts_max=1))


def channel_change(name: str, channel: AnyChannel, stored: Record | None, now: Instant) -> RecordChange:
    """The write of a channel over the stored one, with its audit entry."""
    version = 0 if stored is None else stored.version
    line = told(
        "channel.create" if stored is None else "channel.update",
        f"channel/{name}",
        now,
        before=None if stored is None else shown_channel(name, decode_channel(stored.body)),
        after=shown_channel(name, channel),
    )
    record = Record(name=CHANNEL + name, body=msgspec.json.encode(channel), version=version + 1)
    return RecordChange(record, version, records=line)


class ChannelOperations:
    """Channels of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, check: ChannelCheck) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._check = check

    async def put(self, name: str, channel: AnyChannel) -> tuple[AnyChannel, bool]:
        """Define the channel, or bring the existing one to this. The second value: whether it is new."""
        for _ in range(RACES_MAX):
            (stored,) = await self._store.get_records([CHANNEL + name])
            before = None if stored is None else decode_channel(stored.body)
            wanted = await self.wanted(channel, before)
            if wanted == before:
                return wanted, False
            change = channel_change(name, wanted, stored, self._clock.now())
            if (await self._store.put_records([change])) == [True]:
                return wanted, stored is None
        raise contended(f"channel {name}")

    async def wanted(self, channel: AnyChannel, before: AnyChannel | None) -> AnyChannel:
        """The channel with the secrets that it keeps. Raises InvalidRequest for one that may not be used here."""
        wanted = keep_channel_secrets(channel, before)
        await asyncio.to_thread(self._check, wanted)
        return wanted

    async def find(self, name: str) -> AnyChannel | None:
        """The channel of that name, secrets and all."""
        (stored,) = await self._store.get_records([CHANNEL + name])
        return None if stored is None else decode_channel(stored.body)

    async def get(self, name: str) -> AnyChannel:
        """The channel of that name. Raises NotFound."""
        channel = await self.find(name)
        if channel is None:
            raise NotFound(f"there is no channel named {name!r}")
        return channel

    async def page(self, after: str | None, limit: int) -> Page[tuple[str, AnyChannel]]:
        """Channels by name, beginning after this name; at most 200."""
        where, beyond = RecordFilter(CHANNEL), None if after is None else CHANNEL + after
        page = await self._store.list_records(where, beyond, min(limit, PAGE_MAX))
        items = tuple((record.name.removeprefix(CHANNEL), decode_channel(record.body)) for record in page.items)
        return Page(items, None if page.next_after is None else page.next_after.removeprefix(CHANNEL))

    async def untold(self, since: Instant) -> dict[str, Untold]:
        """The channels that did not take their last message, if that was tried since then."""
        pages = pages_of(lambda after: self._store.list_records(RecordFilter(UNTOLD), after, PAGE_MAX))
        found = {each.name.removeprefix(UNTOLD): _decode_untold(each.body) async for page in pages for each in page}
        return {name: untold for name, untold in found.items() if untold.at >= since}

    async def delete(self, name: str) -> None:
        """Remove a channel. Raises NotFound."""
        for _ in range(RACES_MAX):
            (stored,) = await self._store.get_records([CHANNEL + name])
            if stored is None:
                raise NotFound(f"there is no channel named {name!r}")
            before = shown_channel(name, decode_channel(stored.body))
            line = told("channel.delete", f"channel/{name}", self._clock.now(), before=before)
            change = RecordChange(stored, stored.version, deleted=True, records=line)
            if (await self._store.put_records([change])) == [True]:
                return
        raise contended(f"channel {name}")

    async def test(self, name: str) -> Run:
        """A run that sends one message to the channel, in one attempt. Raises NotFound."""
        await self.get(name)
        now = self._clock.now()
        event = Told(TEST, None, None, None, to_text(now), f"This is a test of the channel {name}.")
        key = f"{uuid7(now, self._entropy(10))}/test/notify:{name}"
        run = replace(notify_run(name, event, key, now, _ONCE), priority=100)
        await self._store.add_runs([run], told_runs([run], {run.id: f"channel.test channel/{name}"}))
        announce_runs(self._signal, [run])
        return run
