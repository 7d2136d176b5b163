"""`rrule`: recurrence rules of RFC 5545, with RDATE, EXDATE, EXRULE and several rules in one.

Owns what the set of rules means together: where it starts, in which zone, and its additions and exceptions. The rules
themselves are the engine's (`recurrence/`). Two decisions are made here. A rule without DTSTART counts from Monday
1973-01-01T00:00:00 in its zone, so that the answer depends on the rule alone; one with COUNT can't, and counts from its
anchor. And what EXRULE and EXDATE leave out is passed over one by one, up to a limit, so that a rule of which nothing
is left gets an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_text
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend
from horarium.triggers.recurrence import Fires, Freq, Parts, make_fires
from horarium.triggers.recurrence.civil import DAY_SECONDS
from horarium.triggers.rrule_text import BARE_START, Moment, read_moment, read_rule_text
from horarium.triggers.rrule_words import say_rules
from horarium.triggers.spec import Spec
from horarium.triggers.words import quote
from horarium.triggers.zones import Gap, Repeat, Zone, get_zone

EXCLUDED_MAX: Final = 100_000
"""Fire times in a row that EXRULE and EXDATE may leave out; beyond that, it is too expensive."""


def rrule(text: str, timezone: str | None = None, *, gap: str = "shift", repeat: str = "first") -> RRule:
    """The trigger of a rule text: `FREQ=...`, `RRULE:...`, or iCalendar lines (DTSTART, RRULE, RDATE, EXDATE, EXRULE).

    `timezone` (an IANA key) is for a text that names no zone with its DTSTART; without either it is UTC. `gap` and
    `repeat` say what becomes of wall times that the clock skips or shows twice. Raises InvalidTrigger (with the
    position of the fault, where there is one) for a text that can't be read and for a rule that can never fire.
    """
    return RRule(text, timezone, gap=gap, repeat=repeat)


class RRule(Trigger):
    """A set of recurrence rules; a value: equal if text, zone, policies and anchor are."""

    type: ClassVar[str] = "rrule"
    __slots__ = ("_anchor", "_content", "_gap", "_repeat", "_set", "_text", "_timezone", "_zone")

    def __init__(
        self,
        text: str,
        timezone: str | None = None,
        *,
        gap: str = "shift",
        repeat: str = "first",
        anchor: Instant | None = None,
    ) -> None:
        self._content = read_rule_text(text)
        self._text, self._timezone = text.strip(), timezone
        self._gap, self._repeat = _read_policies(gap, repeat)
        self._zone = _find_zone(self._content.start, timezone)
        self._anchor = None if anchor is None or not self._counts_from_anchor() else anchor // SECOND * SECOND
        self._set = self._make_set(None if self._anchor is None else self._anchor // SECOND)
        self._set.refuse_if_empty()

    @classmethod
    def from_spec(cls, spec: Spec | Mapping[str, Any]) -> RRule:
        """Reads `{"type": "rrule", "rrule", "timezone"?, "gap"?, "repeat"?, "anchor"?}`."""
        fields = spec if isinstance(spec, Spec) else Spec(spec, 1, _refuse_nested)
        trigger = cls(
            fields.text("rrule", "a rule such as 'FREQ=DAILY;BYHOUR=9'"),
            fields.optional_text("timezone", "an IANA time zone such as 'Europe/Berlin'"),
            gap=fields.text("gap", "a gap policy", Gap.SHIFT),
            repeat=fields.text("repeat", "a repeat policy", Repeat.FIRST),
            anchor=fields.optional_instant("anchor"),
        )
        if fields is not spec:
            fields.done()
        return trigger

    @property
    def zone(self) -> Zone:
        """The zone of its wall times: that of DTSTART, or the one given beside the text."""
        return self._zone

    def anchored(self, anchor: Instant) -> RRule:
        """With COUNT and no DTSTART, the rule that counts its occurrences after `anchor` (in whole seconds)."""
        if not self._counts_from_anchor() or self._anchor is not None:
            return self
        return RRule(self._text, self._timezone, gap=self._gap, repeat=self._repeat, anchor=anchor)

    def next_fire(self, after: Instant) -> Instant | None:
        second = after // SECOND
        fires = self._set
        if self._anchor is None and self._counts_from_anchor():
            fires = self._set_after(second)
        found = fires.next(second)
        return None if found is None else found * SECOND

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        fixed = self._fixed_at(after)
        return super().list_fires(after, until, limit) if fixed is self else fixed.list_fires(after, until, limit)

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        fixed = self._fixed_at(after)
        return super().last_fire(after, until) if fixed is self else fixed.last_fire(after, until)

    def count_fires(self, after: Instant, until: Instant, limit: int) -> int:
        counted = self._set.count(after // SECOND, until // SECOND)
        return super().count_fires(after, until, limit) if counted is None else min(counted, limit)

    def _fixed_at(self, after: Instant) -> RRule:
        """The rule for a question about many fire times: what needs an anchor and has none counts from `after`."""
        return self.anchored(min(max(after, 0), INSTANT_MAX - 1))

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": self.type, "rrule": self._text}
        if self._timezone is not None:
            spec["timezone"] = self._timezone
        if self._gap is not Gap.SHIFT:
            spec["gap"] = str(self._gap)
        if self._repeat is not Repeat.FIRST:
            spec["repeat"] = str(self._repeat)
        if self._anchor is not None:
            spec["anchor"] = to_text(self._anchor)
        return spec

    def words(self) -> str:
        anchor = None if self._anchor is None else self._zone.to_wall(self._anchor // SECOND)
        return say_rules(self._content, self._zone, anchor)

    def _counts_from_anchor(self) -> bool:
        content = self._content
        return content.start is None and any(rule.count for rule in (*content.rules, *content.exrules))

    def _set_after(self, second: int) -> RuleSet:
        return self._make_set(min(max(second, 0), INSTANT_MAX // SECOND - 1))

    def _make_set(self, anchor: int | None) -> RuleSet:
        content = self._content
        # a rule that an EXRULE repeats leaves nothing, and need not be searched for that
        rules = [self._make_fires(parts, anchor) for parts in content.rules if parts not in content.exrules]
        exrules = [self._make_fires(parts, anchor) for parts in content.exrules]
        return RuleSet(rules, exrules, self._seconds(content.dates), self._seconds(content.exdates))

    def _make_fires(self, parts: Parts, anchor: int | None) -> Fires:
        start = self._content.start
        wall = start.wall if start else BARE_START if anchor is None else self._zone.to_wall(anchor)
        if start is None and anchor is None and parts.freq is Freq.HOURLY and not parts.by_minute:
            # on the hour, also where the zone is no whole hours from where it was in 1973
            parts = replace(parts, by_minute=(0,))
        return make_fires(
            parts,
            self._zone,
            wall,
            until=self._read_until(parts),
            gap=self._gap,
            repeat=self._repeat,
            begins_after_start=anchor is not None,
        )

    def _read_until(self, parts: Parts) -> int | None:
        """The last UTC second. A DATE means the whole of that day in the zone of the rule."""
        if parts.until is None:
            return None
        wall, named = read_moment(parts.until, None)
        zone = get_zone(named) if named else self._zone
        if "T" in parts.until:
            return zone.to_utc(wall)[0]
        return zone.to_utc(wall + DAY_SECONDS, Gap.RUN_AT_TRANSITION)[0] - 1

    def _seconds(self, moments: list[Moment]) -> list[int]:
        found: set[int] = set()
        for wall, zone in moments:
            found.update((get_zone(zone) if zone else self._zone).to_utc(wall, self._gap, self._repeat))
        return sorted(found)

    def _identity(self) -> tuple[object, ...]:
        return self._text, self._timezone, self._gap, self._repeat, self._anchor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRule) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"RRule({self._text!r}, timezone={self._timezone!r})"


class RuleSet:
    """The fire times of rules and dates together, less those of EXRULE and EXDATE. In UTC seconds."""

    __slots__ = ("_dates", "_exdates", "_exrules", "_rules", "_single")

    def __init__(self, rules: list[Fires], exrules: list[Fires], dates: list[int], exdates: list[int]) -> None:
        self._rules, self._exrules = rules, exrules
        self._dates, self._exdates = dates, frozenset(exdates)
        self._single = rules[0] if len(rules) == 1 and not (exrules or dates or exdates) else None

    def refuse_if_empty(self) -> None:
        """Raises InvalidTrigger where a rule can never fire, or where nothing is left of them all."""
        for fires in (*self._rules, *self._exrules):
            if not fires.is_possible():
                raise InvalidTrigger(_IMPOSSIBLE, field="rrule")
        if self._single is None and self.next(-1) is None:
            raise InvalidTrigger("nothing is left: EXDATE and EXRULE leave out every fire time", field="rrule")

    def next(self, after: int) -> int | None:
        """The first fire time strictly after a UTC second."""
        if self._single is not None:
            return self._single.next(after)
        for _ in range(EXCLUDED_MAX):
            spend(len(self._rules) + len(self._exrules))
            found = self._next_included(after)
            if found is None or not self._is_excluded(found):
                return found
            after = found
        raise TooExpensive(
            f"EXDATE and EXRULE leave out more than {EXCLUDED_MAX} fire times in a row: give a narrower RRULE instead",
            field="rrule",
        )

    def count(self, after: int, until: int) -> int | None:
        """How many fire times lie in (after, until], where arithmetic alone knows; else None."""
        return None if self._single is None else self._single.count(after, until)

    def _next_included(self, after: int) -> int | None:
        found = [fire for rule in self._rules if (fire := rule.next(after)) is not None]
        at = bisect_right(self._dates, after)
        return min(found + self._dates[at : at + 1], default=None)

    def _is_excluded(self, fire: int) -> bool:
        return fire in self._exdates or any(rule.next(fire - 1) == fire for rule in self._exrules)


def _find_zone(start: Moment | None, timezone: str | None) -> Zone:
    given = start.zone if start else None
    if given and timezone is not None and given != timezone:
        raise InvalidTrigger(
            f"DTSTART is in {quote(given)}, but timezone is {quote(timezone)}: give one of them", field="timezone"
        )
    if given is None:
        return get_zone("UTC" if timezone is None else timezone)
    try:
        return get_zone(given)
    except InvalidTrigger as error:
        raise InvalidTrigger(f"TZID: {error.message}", field="rrule") from None


def _read_policies(gap: str, repeat: str) -> tuple[Gap, Repeat]:
    for name, value, policy in (("gap", gap, Gap), ("repeat", repeat, Repeat)):
        if value not in tuple(policy):
            raise InvalidTrigger(f"{name}: {quote(value)}: expected one of {', '.join(policy)}", field=name)
    return Gap(gap), Repeat(repeat)


def _refuse_nested(given: object, depth: int) -> Trigger:
    raise InvalidTrigger("rrule has no trigger inside", field="rrule")


_IMPOSSIBLE: Final = (
    "the rule never fires from its start to the year 2200: its parts exclude each other (such as 30 February), "
    "or its UNTIL lies before its first fire time"
)
