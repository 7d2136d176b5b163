"""`cron`: the wall times of an expression, in a zone, with a rule for the hours that the clock skips or repeats.

Owns the step from matching wall seconds (`cron_days`) to instants. A zone is a row of segments, stretches of time with
one offset. Within one, wall time and UTC differ by a constant, so "the next fire time" is one question to the matcher;
only the hour or so at a segment's start needs more: walls that the change skipped (a gap) or shows again (a fold).

Two kinds of expression, as Debian's cron has them. One whose minute or hour field is a wildcard follows elapsed time:
it fires whenever the wall clock shows a match, so skipped times are no loss and repeated ones fire twice. Any other
names fixed times: each is owed once a day, and `gap` and `repeat` say when.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, cast

from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.errors import InvalidTrigger
from horarium.triggers.arguments import advise_cron, explained
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend
from horarium.triggers.cron_days import DayMatch, Matcher
from horarium.triggers.cron_fields import Fields, draw, read_fields
from horarium.triggers.cron_words import say_cron
from horarium.triggers.spec import Spec
from horarium.triggers.words import nearest, quote
from horarium.triggers.zones import Gap, Repeat, Segment, Zone, get_zone

SEED_MAX = 200
"""Characters in the seed of `H`."""
COMPILED_KEPT = 1_024
"""Compiled expressions that crons share; one takes about 1 KiB."""

FIRES_OF_A_STEP = 16
"""Fire times that cost as much, listed together, as one that is asked for alone."""

_END = INSTANT_MAX // SECOND
_CHANGE_MAX = 26 * 3600
_JUMP_MARGIN = 48 * 3600


class Compiled(NamedTuple):
    """The meaning of an expression, without a zone."""

    matcher: Matcher
    elapsed: bool
    hashed: bool


@dataclass(frozen=True, slots=True)
class Cron(Trigger):
    """A cron expression in a time zone. Equal if all six fields are."""

    type: ClassVar[str] = "cron"
    expression: str
    timezone: str = "UTC"
    day_match: DayMatch = "any"
    gap: Gap = Gap.RUN_AT_TRANSITION
    repeat: Repeat = Repeat.FIRST
    seed: str | None = None
    zone: Zone = field(init=False, compare=False, repr=False)
    matcher: Matcher = field(init=False, compare=False, repr=False)
    follows_elapsed_time: bool = field(init=False, compare=False, repr=False)
    _hashed: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        if self.day_match not in ("any", "all"):
            raise InvalidTrigger(f"day_match: expected 'any' or 'all', not {quote(self.day_match)}", field="day_match")
        if not isinstance(self.expression, str):
            read_fields(self.expression, "")
        compiled = _compile(self.expression, "", self.day_match)
        if compiled.hashed and self.seed:
            compiled = _compile(self.expression, self.seed, self.day_match)
        self._set("gap", _choose(Gap, self.gap, "gap"))
        self._set("repeat", _choose(Repeat, self.repeat, "repeat"))
        self._set("matcher", compiled.matcher)
        self._set("follows_elapsed_time", compiled.elapsed)
        self._set("_hashed", compiled.hashed)
        self._set("zone", get_zone(self.timezone))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_spec(cls, spec: Spec) -> Cron:
        """Reads `{"type": "cron", "expression", "timezone"?, "day_match"?, "gap"?, "repeat"?, "seed"?}`."""
        return cls(
            spec.text("expression", "a cron expression such as '0 3 * * *'"),
            spec.text("timezone", "an IANA time zone such as 'Europe/Berlin'", "UTC"),
            cast(DayMatch, spec.text("day_match", "'any' or 'all'", "any")),
            cast(Gap, spec.text("gap", "a gap policy", Gap.RUN_AT_TRANSITION)),
            cast(Repeat, spec.text("repeat", "a repeat policy", Repeat.FIRST)),
            spec.optional_text("seed", "a text"),
        )

    def seeded(self, seed: str) -> Cron:
        return replace(self, seed=seed[:SEED_MAX]) if self._hashed and self.seed is None else self

    def next_fire(self, after: Instant) -> Instant | None:
        utc = max(0, after // SECOND + 1)
        while utc < _END:
            segment = self.zone.segment_at(utc)
            wall = self.matcher.next_wall(self._first_wall(segment, utc))
            found = wall - segment.offset if wall is not None and wall < self._end_wall(segment) else None
            if utc - segment.start < _CHANGE_MAX and not self.follows_elapsed_time:
                found = self._earlier(found, self._from_gap(segment, utc))
            if found is not None:
                return found * SECOND if found < _END else None
            utc = _step(segment, utc, wall)
        return None

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        found: list[Instant] = []
        utc, end = max(0, after // SECOND + 1), min(until // SECOND + 1, _END)
        while len(found) < limit and utc < end:
            segment = self.zone.segment_at(utc)
            if limit - len(found) > 1 and (self.follows_elapsed_time or utc - segment.start >= _CHANGE_MAX):
                stops = min(end + segment.offset, self._end_wall(segment))
                walls = self.matcher.walls(self._first_wall(segment, utc), stops, limit - len(found))
                spend(1 + len(walls) // FIRES_OF_A_STEP)
                found += [(wall - segment.offset) * SECOND for wall in walls]
                if end <= segment.end:
                    break
                utc = segment.end
                continue
            spend()
            fire = self.next_fire(utc * SECOND - 1)
            if fire is None or fire > until:
                break
            found.append(fire)
            utc = fire // SECOND + 1
        return found

    def _first_wall(self, segment: Segment, utc: int) -> int:
        wall = utc + segment.offset
        if self.repeat is Repeat.FIRST and not self.follows_elapsed_time and wall < segment.clear:
            return segment.clear
        return wall

    def _end_wall(self, segment: Segment) -> int:
        if self.repeat is Repeat.SECOND and not self.follows_elapsed_time:
            return segment.unclear
        return segment.end + segment.offset

    def _from_gap(self, segment: Segment, utc: int) -> int | None:
        """The first UTC second at or after `utc` owed to the wall times that the start of this segment skipped."""
        if self.gap is Gap.SKIP or segment.start <= 0:
            return None
        before = self.zone.segment_at(segment.start - 1).offset
        gap_end = segment.start + segment.offset
        if self.gap is Gap.RUN_AT_TRANSITION:
            wall = (
                self.matcher.next_wall(segment.start + before)
                if utc == segment.start and before < segment.offset
                else None
            )
            return segment.start if wall is not None and wall < gap_end else None
        wall = self.matcher.next_wall(utc + before) if utc + before < gap_end else None
        return wall - before if wall is not None and wall < gap_end else None

    @staticmethod
    def _earlier(one: int | None, other: int | None) -> int | None:
        return one if other is None or (one is not None and one <= other) else other

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": self.type, "expression": self.expression, "timezone": self.timezone}
        if self.day_match != "any":
            spec["day_match"] = self.day_match
        if self.gap is not Gap.RUN_AT_TRANSITION:
            spec["gap"] = self.gap.value
        if self.repeat is not Repeat.FIRST:
            spec["repeat"] = self.repeat.value
        return spec if self.seed is None else {**spec, "seed": self.seed}

    def words(self) -> str:
        return f"{say_cron(read_fields(self.expression, self.seed or ''), self.day_match)}, {self.timezone}"


@explained(advise_cron)
def cron(
    expression: str,
    timezone: str = "UTC",
    *,
    day_match: Literal["any", "all"] = "any",
    gap: Gap | str = Gap.RUN_AT_TRANSITION,
    repeat: Repeat | str = Repeat.FIRST,
    seed: str | None = None,
) -> Cron:
    """A cron expression of 5 fields, 6 (seconds first) or 7 (year last), or `@daily` and its family.

    `timezone` is an IANA name. `day_match`: `any` joins day of month and day of week as Vixie cron does, `all` asks for
    both. `gap` and `repeat` say what becomes of fixed times that the clock skips or repeats. `seed` fixes `H`. Raises
    InvalidTrigger, with the position of the fault.
    """
    return Cron(expression, timezone, day_match, cast(Gap, gap), cast(Repeat, repeat), seed)


def drawn(spec: dict[str, Any], seed: str) -> dict[str, Any]:
    """A stored trigger seeded so; a plain cron is the same for all seeds that choose alike."""
    if spec.get("type") != "cron" or spec.get("seed") is not None or "H" not in spec["expression"].upper():
        return spec
    return {**spec, "expression": draw(spec["expression"], seed[:SEED_MAX])}


@lru_cache(maxsize=COMPILED_KEPT)
def _compile(expression: str, seed: str, day_match: DayMatch) -> Compiled:
    fields = read_fields(expression, seed)
    return Compiled(Matcher(fields, day_match), _follows_elapsed_time(fields), fields.hashed)


def _follows_elapsed_time(fields: Fields) -> bool:
    """A wildcard minute or hour, written as one (`*`, `*/15`) or as all values (`0-23`)."""
    return (
        fields.minute.starred
        or fields.hour.starred
        or fields.minute.mask == (1 << 60) - 1
        or fields.hour.mask == (1 << 24) - 1
    )


def _step(segment: Segment, utc: int, wall: int | None) -> int:
    """Where to look next. A match that is far off is jumped to; near a change, every segment is looked at."""
    if segment.end - utc <= _JUMP_MARGIN:
        return segment.end
    return _END if wall is None else max(segment.end, wall - segment.offset - _JUMP_MARGIN)


def _choose(kind: type[Gap] | type[Repeat], given: object, name: str) -> Gap | Repeat:
    try:
        return kind(cast(str, given))
    except ValueError:
        known = [str(choice) for choice in kind]
        hint = nearest(given, known) if isinstance(given, str) else ""
        raise InvalidTrigger(f"{name}: expected {', '.join(known)}, not {quote(given)}{hint}", field=name) from None


def _check_seed(seed: object) -> None:
    if seed is not None and not (isinstance(seed, str) and len(seed) <= SEED_MAX):
        raise InvalidTrigger(f"seed: expected a text of at most {SEED_MAX} characters, not {quote(seed)}", field="seed")
