"""The delivery of runs of the queue `notify`: messages to channels, many events in one message where they come together
(docs/architecture/follow-ups.md).

Of one channel one notification is claimed at a time, by its concurrency key. The one that is claimed looks at all that
wait for the same channel, and `rules.grouping` says which of them it reports. The message is kept with it before it is
sent, and the other reported runs are ended: so a message that has to be sent again is the same message under the same
id, and no event is in two. While a channel does not answer, one message is retried, and those behind it wait for that.
How long a kind has to wait is remembered: where thousands fail at once, each of them is put off without a look at all
the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from horarium.clock import Clock, Instant, to_micros
from horarium.errors import HorariumError
from horarium.model import (
    Deferred,
    Disposition,
    Event,
    Failed,
    Outcome,
    Run,
    RunChange,
    State,
    Succeeded,
    prune_instant,
)
from horarium.model.channels import UNTOLD, AnyChannel, Letter, Note, Taken, Told, Untold
from horarium.model.records import put_over
from horarium.model.targets import NOTIFY_QUEUE
from horarium.operations.channels import LOOKED_AT_MAX, ChannelOperations, decode_letter, decode_note
from horarium.operations.runs.logs import Logs
from horarium.policies import Retention
from horarium.ports import BATCH_MAX, PAGE_MAX, Assignment, Control, RunFilter, Store
from horarium.rules.following import OUTPUT_CHARS_MAX
from horarium.rules.grouping import FAILURES, TEST, TROUBLES, WAITS_MAX, Item, group, happened_at, kind_of, still_told

TOLD = "told/"
"""The record of a channel that notes its past messages."""


WAITS = "waits for more of the same"

log = logging.getLogger("horarium")


class Sends(Protocol):
    """A sender of messages."""

    async def send(self, channel: AnyChannel, letter: Letter) -> Outcome:
        """Send one message. Every failure is an outcome."""


_decode_untold = msgspec.json.Decoder(Untold).decode
_decode_taken = msgspec.json.Decoder(Taken).decode
_decode_told = msgspec.json.Decoder(dict[str, Instant]).decode


class NotifyDelivery:
    """Tells channels."""

    def __init__(self, store: Store, clock: Clock, channels: ChannelOperations, logs: Logs, post: Sends) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels
        self._logs = logs
        self._post = post
        self._later: dict[tuple[str, str, float, float], tuple[Instant, dict[str, Instant]]] = {}

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        """See `ports.Delivery`."""
        run = assignment.run
        try:
            note = decode_note(run.payload or b"")
        except msgspec.DecodeError as error:
            return Failed(f"not a notification: {error}", retryable=False)
        try:
            channel = await self._channels.find(note.channel)
            if channel is None:
                missing = Failed(f"there is no channel named {note.channel!r}")
                await self._complain(run, note.channel, missing.error)
                return missing
            letter = await self._letter(run, note, channel, control)
            if not isinstance(letter, Letter):
                return letter
            await self._end_members(letter)
            outcome = await self._post.send(channel, letter)
            if isinstance(outcome, Failed):
                await self._complain(run, note.channel, outcome.error)
            if not isinstance(outcome, Succeeded):
                return outcome
            taken = _decode_taken(outcome.result or b"{}")
            if taken.again:
                await control.heartbeat(msgspec.json.encode(replace(letter, to=taken.again)))
            control.done()
            await self._remember(letter, channel, all_told=not taken.again)
            for address, answer in taken.refused.items():
                log.warning("channel %s: the mail server refused %s: %s", note.channel, address, answer)
            if taken.again:
                who = ", ".join(f"{address} ({taken.refused[address]})" for address in taken.refused)
                missed = Failed(f"the mail server took the message, but not for {who}")
                await self._complain(run, note.channel, missed.error)
                return missed
        except HorariumError as error:
            return Failed(error.message)
        told = {"events": len(letter.events), "told": 1 + len(letter.members)}
        return Succeeded(msgspec.json.encode(told | ({"refused": taken.refused} if taken.refused else {})))

    async def close(self) -> None:
        """There is nothing to close."""

    # ---- messages

    async def _letter(self, run: Run, note: Note, channel: AnyChannel, control: Control) -> Letter | Outcome:
        """What this run is to say, kept with it; or that it has nothing to say, or not yet."""
        if run.progress is not None:
            return decode_letter(run.progress)
        now = self._clock.now()
        kind = kind_of(note.event)
        key = note.channel, kind, channel.group_seconds, channel.quiet_seconds
        until, told = self._later.get(key, (0, {}))
        is_later = now < until <= now + _waits_max(channel) and note.event.event != TEST
        if is_later and (not told or still_told(told, await self._succeeded([note.event]))):
            return Deferred(until, WAITS)
        others, letters = await self._waiting(run, note.channel) if note.event.event != TEST else ([], [])
        for holder, letter in letters:
            if run.id in letter.members:
                return Succeeded(_told_with(holder.id))
        later = [holder.due_at for holder, letter in letters if holder.due_at > now and not letter.to]
        if later:
            return Deferred(min(later), "the channel did not take a message; it is tried again then")
        spoken = {member for _, letter in letters for member in letter.members}
        items = [item for item in others if item.id not in spoken]
        told = await self._told(note.channel)
        succeeded = await self._succeeded([note.event, *(item.told for item in items)])
        made = group(Item(run.id, run.created_at, note.event), items, told, channel, note.channel, now, succeeded)
        if not isinstance(made, Letter):
            noted = {kind: told[kind]} if kind in told else {}
            self._later = {each: later for each, later in self._later.items() if later[0] > now} | {key: (made, noted)}
            return Deferred(made, WAITS)
        made = replace(made, events=tuple([await self._with_output(told) for told in made.events]))
        await control.heartbeat(msgspec.json.encode(made))
        return made

    async def _waiting(self, run: Run, channel: str) -> tuple[list[Item], list[tuple[Run, Letter]]]:
        """The other notifications for this channel that are pending, and those of them that have a message already."""
        items: list[Item] = []
        letters: list[tuple[Run, Letter]] = []
        where, after, looked = RunFilter(queue=NOTIFY_QUEUE, states=frozenset({State.PENDING})), None, 0
        while looked < LOOKED_AT_MAX:
            page = await self._store.list_runs(where, after, PAGE_MAX)
            for other in page.items:
                if other.id == run.id or other.concurrency_key != run.concurrency_key:
                    continue
                if other.progress is not None:
                    letters.append((other, decode_letter(other.progress)))
                elif (told := decode_note(other.payload or b"").event).event != TEST:
                    items.append(Item(other.id, other.created_at, told))
            looked += len(page.items)
            if (after := page.next_after) is None:
                break
        return items, letters

    async def _succeeded(self, events: Iterable[Told]) -> dict[str, Instant]:
        """The last success of each job of which a failure is told."""
        names = sorted({told.job for told in events if told.job is not None and told.event in FAILURES})
        found: dict[str, Instant] = {}
        for start in range(0, len(names), BATCH_MAX):
            jobs = [job for job in await self._store.get_jobs(names[start : start + BATCH_MAX]) if job is not None]
            health = await self._store.job_health([job.id for job in jobs])
            known = ((job.name, health[job.id].last_success_at) for job in jobs if job.id in health)
            found |= {name: at for name, at in known if at is not None}
        return found

    async def _with_output(self, told: Told) -> Told:
        """The event with the end of its run's log, if it was at work and brought no output along."""
        if told.attempt is UNSET or told.output is not UNSET or told.event not in TROUBLES or told.run_id is None:
            return told
        output = await self._logs.end_of(told.run_id, OUTPUT_CHARS_MAX)
        return replace(told, output=output) if output else told

    async def _end_members(self, letter: Letter) -> None:
        """The notifications that this one tells for are over. Any that was claimed meanwhile ends by itself."""
        now = self._clock.now()
        for start in range(0, len(letter.members), BATCH_MAX):
            runs = await self._store.get_runs(letter.members[start : start + BATCH_MAX])
            pending = [run for run in runs if run is not None and run.state is State.PENDING]
            await self._store.settle_runs([_ended(run, letter.id, now) for run in pending], self._clock.steady())

    # ---- notes of past messages

    async def _told(self, channel: str) -> dict[str, Instant]:
        (record,) = await self._store.get_records([TOLD + channel])
        return {} if record is None else _decode_told(record.body)

    async def _complain(self, run: Run, channel: str, error: str) -> None:
        """Note that the channel did not take this message."""
        now = self._clock.now()
        (record,) = await self._store.get_records([UNTOLD + channel])
        since = now if record is None else _decode_untold(record.body).since
        body = msgspec.json.encode(Untold(run.id, since, now, error))
        await self._store.put_records([put_over(record, UNTOLD + channel, body)])

    async def _remember(self, letter: Letter, channel: AnyChannel, *, all_told: bool) -> None:
        """Note the message, and drop notes that no longer keep anything quiet."""
        now = self._clock.now()
        record, untold = await self._store.get_records([TOLD + letter.channel, UNTOLD + letter.channel])
        if untold is not None and all_told:
            await self._store.put_records([untold.removal()])
        if letter.to:  # it was noted when the others got it
            return
        told = {} if record is None else _decode_told(record.body)
        since = now - to_micros(channel.quiet_seconds)
        kept = {kind: at for kind, at in told.items() if since < at <= now}
        kept |= {kind_of(each): min(now, happened_at(each)) for each in letter.events if each.event != TEST}
        await self._store.put_records([put_over(record, TOLD + letter.channel, msgspec.json.encode(kept))])


def _waits_max(channel: AnyChannel) -> Instant:
    """For how long a notification may be put off. A clock that was set back shows in one that is to wait longer."""
    return to_micros(WAITS_MAX * channel.group_seconds + channel.quiet_seconds)


def _told_with(run_id: str) -> bytes:
    return msgspec.json.encode({"told_with": run_id})


def _ended(run: Run, holder: str, now: Instant) -> RunChange:
    after = replace(
        run,
        state=State.COMPLETED,
        finished_at=now,
        disposition=Disposition.RAN,
        result=_told_with(holder),
        prune_at=prune_instant(now, (run.policy.retention if run.policy else Retention())),
        history=(*run.history, Event(now, State.COMPLETED, f"told together with run {holder}")),
    )
    return RunChange(after, run.token, run.state)
