"""Two of a kind beside each other: the fields of definitions, and fire times. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from horarium.clock import DAY, Instant, to_text

NEAR = 31 * DAY
"""How far apart the two instants of a fire time are at most that was moved."""


class Moved(Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A fire time that comes to lie elsewhere."""

    before: str
    after: str


class FieldChange(Struct, frozen=True):
    """One field, with its path. A value that is left out in one of the two is null there."""

    field: str
    before: Any
    after: Any


class FireChanges(NamedTuple):
    """Fire times that only the later rule has, that only the earlier one has, and that it has elsewhere; each in
    order."""

    added: list[Instant]
    removed: list[Instant]
    moved: list[tuple[Instant, Instant]]

    def texts(self) -> tuple[list[str], list[str], list[Moved]]:
        """The same as people read it."""
        moved = [Moved(to_text(before), to_text(after)) for before, after in self.moved]
        return [*map(to_text, self.added)], [*map(to_text, self.removed)], moved


def fires_compared(before: Sequence[Instant], after: Sequence[Instant], near: int = NEAR) -> FireChanges:
    """A fire time that went is taken for moved where a new one is near: to the nearest that is left."""
    removed, added = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    gone: list[Instant] = []
    moved: list[tuple[Instant, Instant]] = []
    for fire in removed:
        place = bisect_left(added, fire)
        beside = [index for index in (place - 1, place) if 0 <= index < len(added)]
        nearest = min(beside, key=lambda index: abs(added[index] - fire), default=None)
        if nearest is None or abs(added[nearest] - fire) > near:
            gone.append(fire)
        else:
            moved.append((fire, added.pop(nearest)))
    return FireChanges(added, gone, moved)


def fields_compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldChange]:
    """The fields of plain data that differ, by path. An object that was empty, or is so, is told by its fields."""
    old, new = dict(flat(before)), dict(flat(after))
    fields = sorted(field for field in old.keys() | new.keys() if old.get(field) != new.get(field))
    emptied = {field for field in fields if {} in (old.get(field), new.get(field))}
    told = [field for field in fields if not (field in emptied and any(_lies_in(each, field) for each in fields))]
    return [FieldChange(field, old.get(field), new.get(field)) for field in told]


def _lies_in(field: str, path: str) -> bool:
    return field != path and (not path or field.startswith(f"{path}."))


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values within objects, each with its path (`target.headers.accept`)."""
    if isinstance(value, Mapping) and (value or not path):
        for name, each in value.items():
            yield from flat(each, f"{path}.{name}" if path else str(name))
    else:
        yield path, value
