"""Time zones as integer arithmetic, and what happens to wall times that the clock skips or repeats.

Owns the step between UTC seconds and wall seconds (what the wall clock shows, counted from 1970-01-01T00:00:00 as if it
were UTC). It never looks at the server's own zone and holds no state but caches. For speed a conversion is two
comparisons against the segment (the stretch of time with one offset) that was used last. Segments come from `zoneinfo`,
probed one chunk of about a year at a time, so the rule that a zone follows after 2037 is honoured and a zone costs
nothing for years that are never asked about.
"""

from __future__ import annotations

import zoneinfo
from bisect import bisect_right
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from horarium.errors import InvalidTrigger
from horarium.triggers.words import quote

ZONE_NAME_MAX = 64
"""Characters in a zone name; the longest that IANA has is 32."""

_CHUNK_BITS = 25  # 2**25 s, about 388 days, are probed at once
_PROBE_BITS = 19  # one probe every 6.07 days: no zone has changed twice within less than 6.9 days since 1970
_REACH = 26 * 3600  # no zone is farther from UTC than this, and no change (Apia, Kwajalein) larger
_FOREVER = 1 << 62
_UTC_NAMES = frozenset(("UTC", "Etc/UTC", "Etc/UCT", "UCT", "Etc/Universal", "Universal", "Etc/Zulu", "Zulu"))
_NOT_ZONES = frozenset(("localtime", "posixrules", "Factory"))
_NOT_TREES = ("posix/", "right/")


class Gap(StrEnum):
    """The meaning of a wall time that the clock skips."""

    SHIFT = "shift"
    """Read it with the offset before the gap: 02:30 becomes 03:30 (RFC 5545 section 3.3.5)."""
    SKIP = "skip"
    """Nothing: no fire time on that day."""
    RUN_AT_TRANSITION = "run_at_transition"
    """The instant of the change."""


class Repeat(StrEnum):
    """The meaning of a wall time that the clock shows twice."""

    FIRST = "first"
    """The first of the two (RFC 5545 section 3.3.5)."""
    SECOND = "second"
    BOTH = "both"


class Segment(NamedTuple):
    """A stretch [start, end) of UTC seconds with one offset; wall times in [clear, unclear) can mean nothing else."""

    start: int
    end: int
    offset: int
    clear: int
    unclear: int


class Zone:
    """An IANA time zone. Get one from `get_zone`, which keeps them; two are equal if their keys are."""

    __slots__ = ("_chunks", "_recent", "_tz", "key")

    def __init__(self, key: str, tz: tzinfo) -> None:
        self.key: Final = key
        self._tz = tz
        self._chunks: dict[int, tuple[Segment, ...]] = {}
        self._recent = _ALWAYS_UTC if key in _UTC_NAMES else self._segment_of(0)

    def segment_at(self, utc: int) -> Segment:
        """The segment around a UTC second. Its ends are either changes of the offset or mere borders of a chunk."""
        recent = self._recent  # one read: another thread may put another segment here at any time
        if recent.start <= utc < recent.end:
            return recent
        self._recent = recent = self._segment_of(utc)
        return recent

    def to_wall(self, utc: int) -> int:
        """The wall clock at a UTC second, as wall seconds."""
        start, end, offset, _, _ = self._recent
        return utc + offset if start <= utc < end else utc + self.segment_at(utc).offset

    def to_utc(self, wall: int, gap: Gap = Gap.SHIFT, repeat: Repeat = Repeat.FIRST) -> tuple[int, ...]:
        """The UTC seconds that a wall second means, in order: none, one or two of them."""
        _, _, offset, clear, unclear = self._recent
        if clear <= wall < unclear:
            return (wall - offset,)
        segment = self.segment_at(wall - offset)
        if segment.clear <= wall < segment.unclear:
            return (wall - segment.offset,)
        return self._resolve(wall, gap, repeat)

    def _resolve(self, wall: int, gap: Gap, repeat: Repeat) -> tuple[int, ...]:
        near = self._segments_around(wall)
        found = tuple(wall - s.offset for s in near if s.start <= wall - s.offset < s.end)
        if not found:
            return _resolve_gap(wall, near, gap)
        if len(found) == 1 or repeat is Repeat.BOTH:
            return found
        return found[:1] if repeat is Repeat.FIRST else found[-1:]

    def _segments_around(self, wall: int) -> list[Segment]:
        segment = self._segment_of(wall - _REACH)
        near = [segment]
        while segment.end <= wall + _REACH:
            segment = self._segment_of(segment.end)
            near.append(segment)
        return near

    def _segment_of(self, utc: int) -> Segment:
        index = utc >> _CHUNK_BITS
        chunk = self._chunks.get(index)
        if chunk is None:
            self._chunks[index] = chunk = self._probe(index)
        return chunk[bisect_right(chunk, utc, key=_start_of) - 1]

    def _probe(self, index: int) -> tuple[Segment, ...]:
        start, end = index << _CHUNK_BITS, (index + 1) << _CHUNK_BITS
        starts, offsets = [start], [self._offset(start)]
        for probe in range(start + (1 << _PROBE_BITS), end + 1, 1 << _PROBE_BITS):
            offset = self._offset(min(probe, end - 1))
            if offset != offsets[-1]:
                starts.append(self._change(probe - (1 << _PROBE_BITS), probe, offset))
                offsets.append(offset)
        before = [self._offset(start - 1), *offsets]
        after = [*offsets[1:], self._offset(end)]
        return tuple(
            Segment(s, e, o, s + max(o, b), e + min(o, a))
            for s, e, o, b, a in zip(starts, [*starts[1:], end], offsets, before, after, strict=False)
        )

    def _change(self, low: int, high: int, offset: int) -> int:
        """The first second in (low, high] that has `offset`; it is known to hold from there on."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high

    def _offset(self, utc: int) -> int:
        offset = datetime.fromtimestamp(utc, self._tz).utcoffset()
        assert offset is not None
        return offset.days * 86_400 + offset.seconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Zone) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Zone({self.key!r})"


def get_zone(key: str) -> Zone:
    """The zone of an IANA key such as `Europe/Berlin`, the same object each time.

    Raises InvalidTrigger, with the nearest known name, for anything else (also for `localtime`, which is the server's).
    """
    if not isinstance(key, str) or not 0 < len(key) <= ZONE_NAME_MAX:
        raise InvalidTrigger(
            f"timezone: expected an IANA name such as 'Europe/Berlin', not {quote(key)}",
            field="timezone",
        )
    return _load_zone(key)


def tzdata_version() -> str:
    """The version of the time zone database in use, e.g. `2026a`, or `unknown`. The system's comes before ours."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "UTC").exists():
            return _system_version(folder)
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return "unknown"


@lru_cache(maxsize=2048)
def _load_zone(key: str) -> Zone:
    try:
        if key in _NOT_ZONES or key.startswith(_NOT_TREES):
            raise ValueError(key)
        return Zone(key, zoneinfo.ZoneInfo(key))
    except (KeyError, ValueError, OSError):
        raise InvalidTrigger(_unknown_zone(key), field="timezone") from None


def _unknown_zone(key: str) -> str:
    from difflib import get_close_matches

    names = {name.casefold(): name for name in zone_names()}
    near = get_close_matches(key.casefold(), names, n=1, cutoff=0.6)
    hint = f"did you mean {names[near[0]]}?" if near else "give an IANA name such as Europe/Berlin"
    return f"there is no time zone {key!r}: {hint}"


@lru_cache(maxsize=1)
def zone_names() -> tuple[str, ...]:
    """Every IANA name."""
    from importlib import resources

    try:
        return tuple(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())
    except (ModuleNotFoundError, OSError):
        return tuple(sorted(zoneinfo.available_timezones()))


@lru_cache(maxsize=8)
def _system_version(folder: Path) -> str:
    """The first line of `tzdata.zi` is `# version 2026a`; some systems have `+VERSION` instead."""
    for name in ("tzdata.zi", "+VERSION"):
        try:
            with (folder / name).open(encoding="utf-8") as file:
                return file.readline().removeprefix("# version").strip() or "unknown"
        except OSError:
            continue
    return "unknown"


def _resolve_gap(wall: int, near: list[Segment], gap: Gap) -> tuple[int, ...]:
    if gap is Gap.SKIP:
        return ()
    before = next(s for s in reversed(near) if s.end + s.offset <= wall)
    return (before.end,) if gap is Gap.RUN_AT_TRANSITION else (wall - before.offset,)


def _start_of(segment: Segment) -> int:
    return segment.start


_ALWAYS_UTC = Segment(-_FOREVER, _FOREVER, 0, -_FOREVER, _FOREVER)

__all__ = ["Gap", "Repeat", "Segment", "Zone", "get_zone", "tzdata_version", "zone_names"]
