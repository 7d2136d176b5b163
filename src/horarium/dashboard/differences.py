"""The differences between two definitions of a job: one line for each field that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.dashboard.formats import escaped
from horarium.operations.jobs.versions import Version
from horarium.rules.differing import flat
from horarium.wire.definitions import JobDefinition
from horarium.wire.masking import shown_target

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobDefinition)}


class Difference(Struct, frozen=True):
    """One field. An empty text: it was not there."""

    field: str
    before: str
    after: str


class Change(Struct, frozen=True):
    """A version beside the one before it."""

    version: int
    at: Instant
    actor: str
    action: str
    differences: tuple[Difference, ...]
    before: int | None


def changes(versions: list[Version]) -> list[Change]:
    """`versions`: the newest first. The oldest has nothing that it is compared with."""
    shown = [_plain(version) for version in versions]
    made = []
    for place, version in enumerate(versions):
        older = versions[place + 1] if place + 1 < len(versions) else None
        found = tuple(differences(shown[place + 1], shown[place])) if older is not None else ()
        before = None if older is None else older.version
        made.append(Change(version.version, version.at, version.actor, version.action, found, before))
    return made


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Field by field, by name."""
    old, new = (
        {field: escaped(json.dumps(value, ensure_ascii=False)) for field, value in flat(each)}
        for each in (before, after)
    )
    for field in sorted(old.keys() | new.keys()):
        if old.get(field) != new.get(field):
            yield Difference(field, old.get(field, ""), new.get(field, ""))


def _said(value: Any, default: Any) -> bool:
    """Whether its owner said this: it is neither empty nor what it would be anyhow."""
    return bool(value != {} and value != default)


def _plain(version: Version) -> dict[str, Any]:
    shown = replace(version.definition, target=shown_target(version.definition.target))
    plain: dict[str, Any] = json.loads(msgspec.json.encode(shown))
    return {field: value for field, value in plain.items() if _said(value, _DEFAULTS.get(field))}
