"""Channels that jobs and batches name are there, so that an alert finds its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from horarium.errors import InvalidJob, InvalidRequest
from horarium.model import Follow, Job, Occasion
from horarium.model.batches import BatchOn
from horarium.model.channels import CHANNEL
from horarium.ports import Store

On = Mapping[Occasion, Sequence[Follow]] | BatchOn


async def require_channels(store: Store, after: Job, before: Job | None = None) -> None:
    """Raises InvalidJob if the job is to tell a channel that is not there, unless it did so before."""
    names = _told(after.on) - (frozenset() if before is None else _told(before.on))
    if missing := await _missing(store, names):
        raise InvalidJob(f"on: {_say(missing)}", field="on")


async def require_batch_channels(store: Store, on: BatchOn) -> None:
    """Raises InvalidRequest if a batch is to tell a channel that is not there."""
    if missing := await _missing(store, _told(on)):
        raise InvalidRequest(f"on: {_say(missing)}", field="on")


async def channel_warnings(store: Store, followed: Sequence[On], known: Collection[str] = ()) -> list[str]:
    """For each of these the same in words; nothing where its channels are there, or are `known` to come."""
    names = frozenset[str]().union(*map(_told, followed)).difference(known)
    missing = frozenset(await _missing(store, names))
    return [_say(sorted(missing & _told(on))) for on in followed]


async def _missing(store: Store, names: frozenset[str]) -> list[str]:
    wanted = sorted(names)
    found = await store.get_records([CHANNEL + name for name in wanted]) if wanted else []
    return [name for name, record in zip(wanted, found, strict=True) if record is None]


def _say(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"there is no channel {', '.join(map(repr, names))}; add it (horarium channel add), or correct its name"


def _told(on: On) -> frozenset[str]:
    return frozenset(each.notify for follows in on.values() for each in follows if each.notify is not None)
