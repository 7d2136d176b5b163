"""Explanations of a thousand random instants, beside an oracle that shares no code with the rules.

The oracle writes down every wall time that a rule names in the days around the instant, one by one, and looks each up
on the clock of its zone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from horarium.clock import to_instant
from horarium.model import Disposition, Job
from horarium.rules.explaining import explain
from horarium.testing.values import a_job

pytestmark = pytest.mark.slow

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAYS_AROUND = 24
CHANGES = {
    "Europe/Berlin": (date(2027, 3, 28), date(2027, 10, 31)),
    "America/New_York": (date(2027, 3, 14), date(2027, 11, 7)),
    "Australia/Lord_Howe": (date(2027, 10, 3), date(2027, 4, 4)),
    "Africa/Cairo": (date(2027, 4, 30), date(2027, 10, 29)),
    "Asia/Kolkata": (date(2027, 5, 5), date(2027, 8, 8)),
}
"""Of each zone a day on which its clock goes forward, and one on which it goes back; of the last, any two days."""
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")


@dataclass
class Rule:
    zone: str
    hours: list[int]
    minutes: list[int]
    weekdays: list[int]
    gap: str
    excluded: list[date]
    starts_at: datetime | None
    ends_at: datetime | None
    paused: bool
    fires_max: int | None
    fires: dict[datetime, date] = field(default_factory=dict)
    """Instants at which the rule fires, and the day on its clock, those of excluded days too."""
    lost: set[datetime] = field(default_factory=set)
    """Instants that wall times which do not exist would have, by the offset before the gap."""

    def job(self) -> Job:
        days = ",".join(WEEKDAYS[day] for day in self.weekdays)
        trigger: dict[str, Any] = {
            "type": "cron", "timezone": self.zone, "gap": self.gap,
            "expression": f"{_numbers(self.minutes)} {_numbers(self.hours)} * * {days}",
        }  # fmt: skip
        if self.excluded:
            dates = [day.isoformat() for day in self.excluded]
            trigger = {"type": "except", "trigger": trigger, "except": [{"dates": dates}]}
        now = to_instant(NOW)
        return a_job(
            trigger=trigger, created_at=now, anchor_at=now, planned_until=now, enabled=not self.paused,
            paused_at=now if self.paused else None, fires_max=self.fires_max,
            starts_at=None if self.starts_at is None else to_instant(self.starts_at),
            ends_at=None if self.ends_at is None else to_instant(self.ends_at),
        )  # fmt: skip

    def write_down(self, first: date, last: date) -> None:
        """Every fire time of the days from `first` to `last`."""
        day = first
        while day <= last:
            if day.weekday() in self.weekdays:
                for hour in self.hours:
                    for minute in self.minutes:
                        self._look_up(datetime(day.year, day.month, day.day, hour, minute))
            day += timedelta(days=1)

    def kept(self) -> list[datetime]:
        return sorted(at for at, day in self.fires.items() if day not in self.excluded)

    def _look_up(self, wall: datetime) -> None:
        zone = ZoneInfo(self.zone)
        at = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if at.astimezone(zone).replace(tzinfo=None) == wall:
            self.fires[at] = wall.date()
            return
        self.lost.add(at)
        if self.gap == "skip":
            return
        became = at if self.gap == "shift" else _change_before(zone, at)
        self.fires[became] = became.astimezone(zone).date()


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _change_before(zone: ZoneInfo, at: datetime) -> datetime:
    """The first minute with the offset that the clock has at the instant."""
    offset = at.astimezone(zone).utcoffset()
    while (at - timedelta(minutes=1)).astimezone(zone).utcoffset() == offset:
        at -= timedelta(minutes=1)
    return at


def _any_rule(random: Random) -> tuple[Rule, datetime]:
    """A rule, and an instant that is likely to be one of its fire times, or next to one."""
    zone = random.choice(list(CHANGES))
    around = random.choice(CHANGES[zone]) if random.random() < 0.8 else date(2027, random.randint(1, 12), 9)
    rule = Rule(
        zone=zone, hours=sorted({random.choice((0, 2)), random.randint(0, 4)}),
        minutes=sorted(random.sample((0, 15, 30, 45), random.randint(1, 2))),
        weekdays=sorted(random.sample(range(7), random.choice((2, 6, 7)))),
        gap=random.choice(("shift", "skip", "run_at_transition")),
        excluded=[around + timedelta(days=random.choice((-1, 0, 0, 1)))] if random.random() < 0.4 else [],
        starts_at=None, ends_at=None, paused=random.random() < 0.1, fires_max=None,
    )  # fmt: skip
    rule.write_down(around - timedelta(days=DAYS_AROUND), around + timedelta(days=DAYS_AROUND))
    near = datetime(around.year, around.month, around.day, 12, tzinfo=UTC)
    known = sorted(rule.lost | set(rule.fires), key=lambda each: abs(each - near))[:6]
    at = random.choice(sorted(rule.lost) if rule.lost and random.random() < 0.6 else known) + timedelta(
        minutes=random.choice((0, 0, 0, 0, -1, 1, 15))
    )
    if random.random() < 0.15:
        rule.starts_at = at + timedelta(hours=random.choice((-30, 0, 1)))
    if random.random() < 0.15:
        rule.ends_at = at + timedelta(hours=random.choice((-1, 0, 30)))
    return rule, at


def _expected(rule: Rule, at: datetime) -> tuple[bool, Disposition | None]:
    kept = rule.kept()
    if at not in kept:
        if at in rule.lost and at.astimezone(ZoneInfo(rule.zone)).date() not in rule.excluded and at not in rule.fires:
            return False, Disposition.DST_GAP
        return False, Disposition.EXCLUDED if at in rule.fires else None
    if (rule.starts_at and at < rule.starts_at) or (rule.ends_at and at >= rule.ends_at):
        return False, None
    return (False, Disposition.SKIPPED_PAUSED) if rule.paused else (True, None)


@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_instants_are_explained_as_the_oracle_knows_them(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        rule, at = _any_rule(random)
        told = explain(rule.job(), to_instant(at), to_instant(NOW), None)
        assert (told.fires, told.disposition) == _expected(rule, at), (rule.job().trigger, at, told)
        inside = [
            fire
            for fire in rule.kept()
            if (rule.starts_at is None or fire >= rule.starts_at) and (rule.ends_at is None or fire < rule.ends_at)
        ]
        before = [fire for fire in inside if fire < at]
        after = [fire for fire in inside if fire > at]
        if before:
            assert told.previous == to_instant(before[-1]), (rule.job().trigger, at, told)
        if after:
            assert told.next == to_instant(after[0]), (rule.job().trigger, at, told)


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_counts_what_the_job_will_make(seed: int) -> None:
    random = Random(seed)
    rule, at = _any_rule(random)
    rule.fires_max, rule.paused, rule.ends_at = random.randint(1, 5), False, None
    rule.starts_at = at - timedelta(days=random.randint(0, 9), minutes=1)
    made = [fire for fire in rule.kept() if rule.starts_at <= fire <= at]
    told = explain(rule.job(), to_instant(at), to_instant(NOW), None)
    if at in made:
        over = len(made) > rule.fires_max
        assert (told.fires, told.disposition) == (not over, Disposition.LIMIT_REACHED if over else None), (rule, told)


@pytest.mark.slow
def test_the_oracle_sees_every_kind() -> None:
    """A thousand pairs are worth nothing if they are all alike."""
    seen: dict[tuple[bool, Disposition | None], int] = {}
    for seed in range(10):
        random = Random(seed)
        for _ in range(100):
            rule, at = _any_rule(random)
            kind = _expected(rule, at)
            seen[kind] = seen.get(kind, 0) + 1
    kinds = {
        (True, None), (False, None), (False, Disposition.DST_GAP), (False, Disposition.EXCLUDED),
        (False, Disposition.SKIPPED_PAUSED),
    }  # fmt: skip
    assert seen.keys() == kinds
    assert min(seen.values()) >= 20, str(seen)
