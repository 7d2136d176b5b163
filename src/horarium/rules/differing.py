"""Two of a kind beside each other: the fields of definitions, and fire times. Pure."""

from __future__ import annotations

from collections import deque
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

    def texts(self, most: int | None = None) -> tuple[list[str], list[str], list[Moved]]:
        """The same as people read it; of each kind the first."""
        moved = [Moved(to_text(before), to_text(after)) for before, after in self.moved[:most]]
        return [*map(to_text, self.added[:most])], [*map(to_text, self.removed[:most])], moved


def fires_compared(before: Sequence[Instant], after: Sequence[Instant], near: int = NEAR) -> FireChanges:
    """A fire time that went was moved to the new one that is its neighbour in time: near, and with no other between
    them, or less than half as far off. So the two keep their order, and none is moved past another."""
    removed, added = deque(sorted(set(before) - set(after))), deque(sorted(set(after) - set(before)))
    changes = FireChanges([], [], [])
    while removed and added:
        earlier, later = (removed, added) if removed[0] < added[0] else (added, removed)
        apart = later[0] - earlier[0]
        nearer = len(earlier) > 1 and 2 * (earlier[1] - later[0]) < apart
        if nearer or apart > near:
            (changes.removed if earlier is removed else changes.added).append(earlier.popleft())
        else:
            changes.moved.append((removed.popleft(), added.popleft()))
    changes.added.extend(added)
    changes.removed.extend(removed)
    return changes


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
