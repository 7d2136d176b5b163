"""The scene of a rehearsal, read from plain data: definitions as files have them, and jobs as the API shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from horarium.api.reading import to_definition, without_read_only
from horarium.clock import Instant, to_instant, to_micros
from horarium.errors import InvalidRequest
from horarium.model.overrides import Override
from horarium.operations.plans.documents import read_documents
from horarium.testing.rehearsing import Known, Scene
from horarium.wire.faults import fault_of, say_faults
from horarium.wire.holds import HoldDefinition

HOLD_FIELDS = frozenset({"scope", "reason", "from", "until", "repeat", "missed", "running"})
SECRET_FIELDS = ("signing_secret", "headers", "params", "env")
"""Shown masked, and of no account where nothing is delivered."""
Plain = Mapping[str, Any]


def scene_of(given: Mapping[str, Sequence[Plain]], since: Instant, until: Instant) -> Scene:
    """`given`: `jobs`, `calendars`, `holds` and `overrides` (`job`, `fire_at`, perhaps `to`). What the API shows of a
    job beside its definition is taken into account: its count, its phase, its pause. Raises InvalidRequest."""
    jobs = given.get("jobs", ())
    documents = asyncio.run(read_documents(jobs, given.get("calendars", ()), (), _read_job))
    known = {job["name"]: _known_of(job, since) for job in jobs if isinstance(job.get("name"), str)}
    for each in given.get("overrides", ()):
        name = each.get("job")
        if name not in known:
            raise InvalidRequest(f"overrides: there is no job named {name!r} among the definitions", field="overrides")
        known[name].overrides += (_override(each),)
    holds = [_hold(each, since) for each in given.get("holds", ())]
    return Scene(documents=documents, since=since, until=until, holds=holds, known=known)


def _read_job(fields: dict[str, Any]) -> Any:
    target = fields.get("target")
    if isinstance(target, dict):
        fields["target"] = {name: value for name, value in target.items() if name not in SECRET_FIELDS}
    return to_definition(without_read_only(fields))


def _known_of(view: Plain, since: Instant) -> Known:
    """What the API shows of a job beside its definition. The fire times of an interval go back to `since`."""
    known = Known(
        anchor_at=_instant(view.get("created_at")),
        fires_count=view.get("fires_count") or 0,
        paused_until=_instant(view.get("paused_until")),
        overrides=tuple(_override(each) for each in view.get("overrides") or ()),
    )
    trigger, next_at = view.get("trigger") or {}, _instant(view.get("next_fire_at"))
    if trigger.get("type") == "interval" and trigger.get("from") != "end" and next_at is not None:
        every = to_micros(trigger["every_seconds"])
        known.anchor_at = next_at - every * max(1, -((since - next_at) // every))
    return known


def _override(given: Plain) -> Override:
    fire_at = _instant(given.get("fire_at"))
    if fire_at is None:
        raise InvalidRequest("overrides: each needs the `job` and its `fire_at`", field="overrides")
    return Override(fire_at=fire_at, to=_instant(given.get("to")))


def _hold(given: Plain, since: Instant) -> HoldDefinition:
    own = {name: value for name, value in given.items() if name in HOLD_FIELDS and value is not None}
    try:
        return msgspec.convert(own, HoldDefinition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"holds: {say_faults([fault_of(error)])}", field="holds") from None


def _instant(given: Any) -> Instant | None:
    if given is None or given is msgspec.UNSET:
        return None
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
        return to_instant(moment)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{given!r} is no instant; give one as 2027-03-27T00:00:00+01:00") from None
