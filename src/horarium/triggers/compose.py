"""Triggers made of triggers: `any_of` (a union), `except` (without what a calendar excludes), `between` (a window).

Owns how members are joined; exclusions are in `exclusions`. Members are values, so the whole is one too. Bounds: a tree
of triggers is limited in members and depth; crons of one zone are joined and taken away as sets (`calendar`), windows
are skipped at once; and what remains is searched under a budget, up to a fixed number of excluded fire times in a row,
so that no combination can hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar, Protocol

from horarium.clock import INSTANT_MIN, Instant, to_text
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend, spend_first
from horarium.triggers.calendar import CronSet, Daily, Span
from horarium.triggers.cron_trigger import Cron
from horarium.triggers.exclusions import DailyWindow, Exclusion, TriggerTimes, read_exclusion
from horarium.triggers.spec import DEPTH_MAX, Spec, check_instant, read_instant, within
from horarium.triggers.words import quote, say_list
from horarium.triggers.zones import Zone

MEMBERS_MAX = 64
"""Members of one `any_of`, exclusions of one `except`."""

TREE_MAX = 256
"""Triggers in a whole tree."""

EXCLUDED_MAX = 20_000
"""Excluded fire times in a row after which `except` gives up (TooExpensive). Windows and dates count once each."""

WORDS_STEPS = 25
"""The cost of putting one member into words."""
NOT_COMBINED = "what follows from runs of other jobs can't be combined with other triggers; make a job of its own"
UNION_MIN = 4
"""Crons of one zone from which a union asks for them as a set."""


class Source(Protocol):
    """A source of fire times: a trigger, or crons as a set."""

    def next_fire(self, after: Instant) -> Instant | None:
        """As `Trigger.next_fire`."""
        ...


@dataclass(frozen=True, slots=True)
class AnyOf(Trigger):
    """Fires whenever one of its members does; once where several do at the same instant."""

    type: ClassVar[str] = "any_of"
    triggers: tuple[Trigger, ...]
    _sources: tuple[Source, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.triggers) <= MEMBERS_MAX:
            raise InvalidTrigger(
                f"triggers: expected 1 to {MEMBERS_MAX} triggers, not {len(self.triggers)}", field="triggers"
            )
        for index, member in enumerate(self.triggers):
            check_trigger(member, f"triggers[{index}]")
            if member.after_end is not None:
                message = "what counts from the end of the last run can't be combined with other triggers"
                raise InvalidTrigger(f"triggers[{index}]: {message}; make a job of its own", field=f"triggers[{index}]")
        check_tree(self)
        object.__setattr__(self, "_sources", _sources(self))

    @classmethod
    def from_spec(cls, spec: Spec) -> AnyOf:
        """Reads `{"type": "any_of", "triggers": [...]}`."""
        members = spec.list("triggers", "a list of triggers", MEMBERS_MAX)
        return cls(tuple(spec.nested(member, f"triggers[{index}]") for index, member in enumerate(members)))

    def children(self) -> tuple[Trigger, ...]:
        return self.triggers

    def anchored(self, anchor: Instant) -> AnyOf:
        return AnyOf(tuple(member.anchored(anchor) for member in self.triggers))

    def seeded(self, seed: str) -> AnyOf:
        return AnyOf(tuple(member.seeded(seed) for member in self.triggers))

    def next_fire(self, after: Instant) -> Instant | None:
        spend(len(self._sources))
        return min((fire for source in self._sources if (fire := source.next_fire(after)) is not None), default=None)

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        """By merging: a member is asked again only when its fire time was taken."""
        spend(len(self._sources))
        firsts = ((source.next_fire(after), source) for source in self._sources)
        waiting = [(fire, index, source) for index, (fire, source) in enumerate(firsts) if fire is not None]
        heapify(waiting)
        found: list[Instant] = []
        while waiting and waiting[0][0] <= until:
            fire, index, source = waiting[0]
            if not found or fire != found[-1]:
                if len(found) == limit:
                    break
                found.append(fire)
            spend()
            following = source.next_fire(fire)
            if following is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (following, index, source))
        return found

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        lasts = (member.last_fire(after, until) for member in self.triggers)
        return max((fire for fire in lasts if fire is not None), default=None)

    def spec(self) -> dict[str, Any]:
        return {"type": self.type, "triggers": [member.spec() for member in self.triggers]}

    def words(self) -> str:
        return "; and ".join(map(_words_of, self.triggers))


@dataclass(frozen=True, slots=True)
class Except(Trigger):
    """Fires when its trigger does, except where an exclusion covers the fire time."""

    type: ClassVar[str] = "except"
    trigger: Trigger
    excluded: tuple[Exclusion, ...]
    _source: Source = field(init=False, compare=False, repr=False)
    _rest: tuple[Exclusion, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_trigger(self.trigger, "trigger")
        if not 1 <= len(self.excluded) <= MEMBERS_MAX:
            raise InvalidTrigger(
                f"except: expected 1 to {MEMBERS_MAX} exclusions, not {len(self.excluded)}", field="except"
            )
        check_tree(self)
        source, rest = _left_of(self.trigger, self.excluded)
        object.__setattr__(self, "_source", source)
        object.__setattr__(self, "_rest", rest)

    def refuse_if_empty(self) -> None:
        """Raises InvalidTrigger where nothing is left."""
        if self._names_itself() or self.next_fire(INSTANT_MIN - 1) is None:
            raise InvalidTrigger(
                f"except: nothing is left: {self.trigger.words()!r} has no fire time that is not excluded;"
                " remove an exclusion",
                field="except",
            )

    @classmethod
    def from_spec(cls, spec: Spec) -> Except:
        """Reads `{"type": "except", "trigger": {...}, "except": [exclusion, ...]}`."""
        trigger = spec.trigger("trigger")
        given = spec.list("except", "a list of triggers, dates and windows", MEMBERS_MAX)
        zone = zone_of(trigger)
        found = []
        for index, item in enumerate(given):
            with within(f"except[{index}]"):
                found.append(read_exclusion(item, zone, spec))
        made = cls(trigger, tuple(found))
        if not spec.stored:
            made.refuse_if_empty()
        return made

    def children(self) -> tuple[Trigger, ...]:
        return (self.trigger, *(item.trigger for item in self.excluded if isinstance(item, TriggerTimes)))

    @property
    def after_end(self) -> int | None:
        return self.trigger.after_end

    def anchored(self, anchor: Instant) -> Except:
        return Except(self.trigger.anchored(anchor), tuple(item.anchored(anchor) for item in self.excluded))

    def seeded(self, seed: str) -> Except:
        return Except(self.trigger.seeded(seed), tuple(item.seeded(seed) for item in self.excluded))

    def _names_itself(self) -> bool:
        return any(isinstance(item, TriggerTimes) and item.trigger == self.trigger for item in self.excluded)

    def next_fire(self, after: Instant) -> Instant | None:
        fire = self._source.next_fire(after)
        for _ in range(EXCLUDED_MAX):
            spend(1 + len(self._rest))
            if fire is None:
                return None
            end = max((item.end_of(fire) for item in self._rest), default=fire)
            if end <= fire:
                return fire
            fire = self._source.next_fire(end - 1)
        raise TooExpensive(
            f"except: more than {EXCLUDED_MAX} fire times in a row are excluded one by one; hide long stretches with"
            " windows, dates or weekdays",
            field="except",
        )

    def spec(self) -> dict[str, Any]:
        return {"type": self.type, "trigger": self.trigger.spec(), "except": [item.spec() for item in self.excluded]}

    def words(self) -> str:
        return f"{self.trigger.words()}, except {say_list([_words_of(item) for item in self.excluded])}"


@dataclass(frozen=True, slots=True)
class Between(Trigger):
    """Fires when its trigger does, from `start` (included) to `end` (excluded)."""

    type: ClassVar[str] = "between"
    trigger: Trigger
    start: Instant | None = None
    end: Instant | None = None

    def __post_init__(self) -> None:
        check_trigger(self.trigger, "trigger")
        if self.start is None and self.end is None:
            raise InvalidTrigger("between needs from, until or both", field="from")
        for instant, name in ((self.start, "from"), (self.end, "until")):
            if instant is not None:
                check_instant(instant, name)
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise InvalidTrigger("until: expected an instant after from", field="until")
        check_tree(self)

    @classmethod
    def from_spec(cls, spec: Spec) -> Between:
        """Reads `{"type": "between", "trigger": {...}, "from"?: instant, "until"?: instant}`."""
        return cls(spec.trigger("trigger"), spec.optional_instant("from"), spec.optional_instant("until"))

    def children(self) -> tuple[Trigger, ...]:
        return (self.trigger,)

    @property
    def after_end(self) -> int | None:
        return self.trigger.after_end

    def anchored(self, anchor: Instant) -> Between:
        return replace(self, trigger=self.trigger.anchored(max(anchor, self.start or anchor)))

    def seeded(self, seed: str) -> Between:
        return replace(self, trigger=self.trigger.seeded(seed))

    def next_fire(self, after: Instant) -> Instant | None:
        fire = self.trigger.next_fire(after if self.start is None else max(after, self.start - 1))
        return None if fire is None or (self.end is not None and fire >= self.end) else fire

    def count_fires(self, after: Instant, until: Instant, limit: int) -> int:
        after, until = self._clip(after, until)
        return self.trigger.count_fires(after, until, limit) if after < until else 0

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        after, until = self._clip(after, until)
        return self.trigger.last_fire(after, until) if after < until else None

    def _clip(self, after: Instant, until: Instant) -> tuple[Instant, Instant]:
        start = after if self.start is None else max(after, self.start - 1)
        return start, until if self.end is None else min(until, self.end - 1)

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": self.type, "trigger": self.trigger.spec()}
        if self.start is not None:
            spec["from"] = to_text(self.start)
        return spec if self.end is None else {**spec, "until": to_text(self.end)}

    def words(self) -> str:
        start = "" if self.start is None else f", from {to_text(self.start)}"
        return f"{self.trigger.words()}{start}" + ("" if self.end is None else f", until before {to_text(self.end)}")


def _words_of(item: Trigger | Exclusion) -> str:
    spend_first(WORDS_STEPS)
    return item.words()


def any_of(*triggers: Trigger) -> AnyOf:
    """The union of 1 to 64 triggers. Raises InvalidTrigger."""
    return AnyOf(triggers)


def except_(trigger: Trigger, *excluded: Trigger | Exclusion | Mapping[str, Any]) -> Except:
    """A trigger without what 1 to 64 exclusions cover: triggers, or their JSON forms (`{"dates": ["2026-12-25"]}`).

    Days and times of day are read in the trigger's own zone unless the exclusion names one. Raises InvalidTrigger.
    """
    check_trigger(trigger, "trigger")
    found = []
    for index, item in enumerate(excluded):
        with within(f"except[{index}]"):
            found.append(_exclusion(item, zone_of(trigger)))
    made = Except(trigger, tuple(found))
    made.refuse_if_empty()
    return made


def between(trigger: Trigger, start: datetime | str | None = None, end: datetime | str | None = None) -> Between:
    """A trigger from `start` (included) to `end` (excluded): aware datetimes or RFC 3339. Raises InvalidTrigger."""
    first = None if start is None else read_instant(start, "from")
    return Between(trigger, first, None if end is None else read_instant(end, "until"))


def meaning_of(trigger: Trigger, at: Instant) -> Trigger:
    """The trigger to which a phrase is compiled; any other as it is."""
    compiled = getattr(trigger, "compiled", None)
    return trigger if compiled is None else compiled(at)


def zone_of(trigger: Trigger) -> str:
    """The one zone that a trigger and its members name, or UTC."""
    zones = {_zone_of(part) for part in walk(trigger)} - {None}
    return str(zones.pop()) if len(zones) == 1 else "UTC"


def _zone_of(part: Trigger) -> str | None:
    """The zone that a trigger without members names, in its text or in a field."""
    zone = getattr(part, "zone", None) or getattr(part, "timezone", None)
    return zone.key if isinstance(zone, Zone) else zone


def _sources(union: AnyOf) -> tuple[Source, ...]:
    """The sources of a union: its members, those of unions inside it, and crons of one zone as one."""
    members = list(_flat(union))
    crons = list(dict.fromkeys(member for member in members if isinstance(member, Cron)))
    sources: list[Source] = [member for member in members if not isinstance(member, Cron)]
    for zone in dict.fromkeys(cron.timezone for cron in crons):
        alike = [cron for cron in crons if cron.timezone == zone]
        sources += [CronSet(alike)] if len(alike) >= UNION_MIN else alike
    return tuple(sources)


def _left_of(trigger: Trigger, excluded: tuple[Exclusion, ...]) -> tuple[Source, tuple[Exclusion, ...]]:
    """The sources of an `except`: where its trigger is made of crons of one zone, these less the exclusions that are
    sets in that zone too; and the exclusions that remain to be looked at for each fire time."""
    included = _crons(trigger)
    if not included or len({cron.timezone for cron in included}) > 1:
        return trigger, excluded
    crons: list[Cron] = []
    windows: list[Daily] = []
    rest: list[Exclusion] = []
    for item in excluded:
        times = _crons(item.trigger) if isinstance(item, TriggerTimes) and item.for_micros == 1 else []
        if times and all(cron.timezone == included[0].timezone for cron in times):
            crons += times
        elif isinstance(item, DailyWindow) and item.timezone == included[0].timezone:
            windows += _windows(item)
        else:
            rest.append(item)
    return (CronSet(included, crons, windows) if crons or windows else trigger), tuple(rest)


def _windows(window: DailyWindow) -> list[Daily]:
    """A daily window by the days that it touches."""
    if window.end > window.start:
        return [Daily(Span(window.start, window.end), window.weekdays)]
    next_days = (window.weekdays << 1 | window.weekdays >> 6) & 0x7F
    return [Daily(Span(window.start, 86_400), window.weekdays), Daily(Span(0, window.end), next_days)]


def _crons(trigger: Trigger) -> list[Cron]:
    """The crons that a trigger is made of, if it is made of nothing else."""
    members = list(_flat(trigger))
    crons = [member for member in members if isinstance(member, Cron)]
    return crons if len(crons) == len(members) else []


def _flat(trigger: Trigger) -> Iterable[Trigger]:
    """The members of a union and of the unions in it; any other trigger by itself."""
    if not isinstance(trigger, AnyOf):
        yield trigger
        return
    for member in trigger.triggers:
        yield from _flat(member)


def _exclusion(item: Trigger | Exclusion | Mapping[str, Any], zone: str) -> Exclusion:
    if isinstance(item, Trigger):
        check_trigger(item, "trigger")
        return TriggerTimes(item)
    return item if isinstance(item, Exclusion) else read_exclusion(item, zone, None)


def check_trigger(given: object, field: str) -> None:
    if not isinstance(given, Trigger):
        raise InvalidTrigger(f"{field}: expected a trigger such as cron('0 3 * * *'), not {quote(given)}", field=field)
    if given.type == "after":
        raise InvalidTrigger(f"{field}: {NOT_COMBINED}", field=field)


def walk(trigger: Trigger) -> Iterable[Trigger]:
    waiting = [trigger]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(getattr(part, "children", tuple)())


def check_tree(trigger: Trigger) -> None:
    level, total, depth = [trigger], 0, 0
    while level:
        total, depth = total + len(level), depth + 1
        if total > TREE_MAX or depth > DEPTH_MAX:
            raise InvalidTrigger(f"expected at most {TREE_MAX} triggers nested {DEPTH_MAX} deep: simplify them")
        level = [child for part in level for child in getattr(part, "children", tuple)()]
