"""Changes of a definition as they come over the wire: JSON merge patches (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from horarium.errors import InvalidJob
from horarium.model import Job
from horarium.wire.definitions import JobDefinition, definition_of, read_definition


def patched_definition(job: Job, changes: Mapping[str, Any]) -> JobDefinition:
    """The definition of the job with a merge patch applied. Raises InvalidJob."""
    if changes.get("name", job.name) != job.name:
        raise InvalidJob("name: the name of a job can't be changed", field="name")
    return read_definition(patch_definition(msgspec.to_builtins(definition_of(job)), changes))


def patch_definition(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    """The definition with a merge patch applied. A trigger or target of another type takes the place of the old one:
    fields of the old type would make no sense in it."""
    kept = dict(fields)
    for field in ("trigger", "target"):
        change = changes.get(field)
        if isinstance(change, Mapping) and change.get("type", kept[field]["type"]) != kept[field]["type"]:
            kept[field] = {}
    return merge_patch(kept, dict(changes))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
