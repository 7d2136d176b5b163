"""Channels: kept as records, checked when they are written, tried by a message.

A channel is the record `channel/NAME`. Its secrets are shown as asterisks, which keep the stored value when they are
sent back for the same place, and are refused for any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import compress

import msgspec
from msgspec.structs import replace

from horarium.clock import Instant, to_text
from horarium.errors import InvalidRequest, NotFound
from horarium.model import Run, RunPolicy, State, uuid7
from horarium.model.channels import CHANNEL, UNTOLD, AnyChannel, Letter, Note, Told, Untold
from horarium.model.records import Record, RecordChange, RecordFilter, put_over
from horarium.model.targets import NOTIFY_QUEUE
from horarium.operations.bounds.listing import pages_of
from horarium.operations.writing.auditing import told, told_runs
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.operations.writing.signalling import announce_runs
from horarium.policies import Retry
from horarium.ports import PAGE_MAX, RunFilter
from horarium.rules.following import notify_run
from horarium.rules.grouping import TEST, Item, group, kind_of
from horarium.wire.channels import keep_channel_secrets, shown_channel

ChannelCheck = Callable[[AnyChannel], None]
"""Raises InvalidRequest for a channel that may not be used here (an address that is not allowed, a bad secret). It may
take long (a library is imported), so it is called in a thread."""

decode_channel = msgspec.json.Decoder(AnyChannel).decode
decode_note = msgspec.json.Decoder(Note).decode
decode_letter = msgspec.json.Decoder(Letter).decode
_decode_untold = msgspec.json.Decoder(Untold).decode
_ONCE = RunPolicy(retry=Retry(attempts_max=1))
LOOKED_AT_MAX = 5_000
"""Waiting notifications that one look goes through."""


def channel_change(name: str, channel: AnyChannel, stored: Record | None, now: Instant) -> RecordChange:
    """The write of a channel over the stored one, with its audit entry."""
    line = told(
        "channel.create" if stored is None else "channel.update",
        f"channel/{name}",
        now,
        before=None if stored is None else shown_channel(name, decode_channel(stored.body)),
        after=shown_channel(name, channel),
    )
    return put_over(stored, CHANNEL + name, msgspec.json.encode(channel), line)


class ChannelOperations:
    """Channels of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, check: ChannelCheck) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._kept: Kept[AnyChannel] = Kept(context, "channel", CHANNEL, decode_channel)
        self.find, self.get, self.page = self._kept.find, self._kept.get, self._kept.page
        self._check = check

    async def put(self, name: str, channel: AnyChannel) -> tuple[AnyChannel, bool]:
        """Define the channel, or bring the existing one to this. The second value: whether it is new."""
        made = channel

        async def wanted(stored: Record | None) -> RecordChange | None:
            nonlocal made
            before = None if stored is None else decode_channel(stored.body)
            made = await self.wanted(channel, before)
            return None if made == before else channel_change(name, made, stored, self._clock.now())

        change = await self._kept.change(name, wanted)
        return made, change is not None and not change.expected

    async def wanted(self, channel: AnyChannel, before: AnyChannel | None) -> AnyChannel:
        """The channel with the secrets that it keeps. Raises InvalidRequest for one that may not be used here."""
        wanted = keep_channel_secrets(channel, before)
        await asyncio.to_thread(self._check, wanted)
        return wanted

    async def untold(self, since: Instant) -> dict[str, Untold]:
        """The channels that did not take their last message, if that was tried since then."""
        pages = pages_of(lambda after: self._store.list_records(RecordFilter(UNTOLD), after, PAGE_MAX))
        found = {each.name.removeprefix(UNTOLD): _decode_untold(each.body) async for page in pages for each in page}
        return {name: untold for name, untold in found.items() if untold.at >= since}

    async def delete(self, name: str) -> None:
        """Remove a channel. Raises NotFound."""

        async def wanted(stored: Record | None) -> RecordChange:
            if stored is None:
                raise self._kept.missing(name)
            before = shown_channel(name, decode_channel(stored.body))
            line = told("channel.delete", f"channel/{name}", self._clock.now(), before=before)
            return stored.removal(line)

        await self._kept.change(name, wanted)

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

    async def kept(self, name: str) -> list[Item]:
        """The events that a channel has not taken, the oldest first: those of the message that it did not take, and
        those of notifications that wait behind it. None where it takes messages."""
        if (untold := (await self.untold(0)).get(name)) is None:
            return []
        where = RunFilter(queue=NOTIFY_QUEUE, states=frozenset({State.PENDING}))
        runs = {run.id: run for run in await self._store.get_runs([untold.run_id]) if run is not None}
        async for page in pages_of(lambda after: self._store.list_runs(where, after, PAGE_MAX)):
            runs |= {run.id: run for run in page}
            if len(runs) >= LOOKED_AT_MAX:
                break
        found, spoken = list[Item](), set[str]()
        for run in runs.values():
            note = decode_note(run.payload or b"")
            if note.channel != name or note.event.event == TEST:
                continue
            letter = None if run.progress is None else decode_letter(run.progress)
            found += [Item(run.id, run.created_at, told) for told in (letter.events if letter else [note.event])]
            spoken.update(letter.members if letter else ())
        return sorted((item for item in found if item.id not in spoken), key=lambda item: (item.told.at, item.id))

    async def send_by(self, name: str, other: str) -> Run:
        """Send by another channel the events that this one has not taken; they stay kept for this one. The run of the
        message, or of the first where different events are too many for one; asked again for the same events, it is
        the same run. Raises NotFound, InvalidRequest."""
        if other == name or (channel := await self.find(other)) is None:
            raise InvalidRequest(f"by: there is no other channel named {other[:200]!r}", field="by")
        if not (items := await self.kept(name)):
            raise NotFound(f"channel {name} has taken all its messages")
        now, at_once, runs = self._clock.now(), replace(channel, group_seconds=0), list[Run]()
        while items:
            last = items[-1]
            run = notify_run(other, last.told, f"{last.id}/{len(items)}/notify:{other}", now)
            letter = group(last, items[:-1], {}, at_once, other, now)
            assert isinstance(letter, Letter)  # nothing keeps them quiet
            letter = replace(letter, id=run.id, members=())
            runs.append(replace(run, progress=msgspec.json.encode(letter)))
            said = {kind_of(event) for event in letter.events}
            items = [item for item in items if item.kind not in said]
        told = told_runs(runs[:1], {runs[0].id: f"channel.send_by channel/{name}"})
        added = await self._store.add_runs(runs, told)
        announce_runs(self._signal, compress(runs, added))
        return runs[0] if added[0] else await self._store.get_run_by_key(runs[0].unique_key or "") or runs[0]
