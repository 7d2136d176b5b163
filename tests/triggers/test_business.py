"""Business days against a second reading of the conventions: one day at a time, with `zoneinfo` and sets of dates."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from horarium.clock import Instant, to_datetime, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import any_of, cron, parse_trigger, rrule, when
from horarium.triggers.base import Trigger
from horarium.triggers.business import BusinessDay, business_day
from horarium.triggers.business_days import Content, Convention

NAMES = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
ONE = timedelta(days=1)
CASES = 100
YEARS = 30


class Oracle:
    """A calendar, day by day."""

    def __init__(self, content: Content) -> None:
        self.weekend = {NAMES.index(name) for name in content.weekend}
        self.ends = date.max if content.ends_on is None else date.fromisoformat(content.ends_on)
        self.off = {date.fromisoformat(text) for text in content.dates}
        self.on = {date.fromisoformat(text) for text in content.business_days}
        self.yearly: set[tuple[int, int]] = set()
        for rule in content.rules:
            parts = dict(part.split("=") for part in rule.split(";"))
            self.yearly.add((int(parts["BYMONTH"]), int(parts["BYMONTHDAY"])))

    def works(self, day: date) -> bool:
        if day in self.on:
            return True
        holiday = day <= self.ends and (day in self.off or (day.month, day.day) in self.yearly)
        return day.weekday() not in self.weekend and not holiday

    def roll(self, day: date, step: timedelta) -> date:
        while not self.works(day):
            day += step
        return day

    def moved(self, day: date, convention: Convention, offset: int) -> date | None:
        if not self.works(day):
            on, back = self.roll(day, ONE), self.roll(day, -ONE)
            match convention:
                case Convention.SKIP:
                    return None
                case Convention.FOLLOWING:
                    day = on
                case Convention.PRECEDING:
                    day = back
                case Convention.MODIFIED_FOLLOWING:
                    day = on if on.month == day.month else back
                case Convention.MODIFIED_PRECEDING:
                    day = back if back.month == day.month else on
                case Convention.NEAREST:
                    day = on if on - day <= day - back else back
        for _ in range(abs(offset)):
            step = ONE if offset > 0 else -ONE
            day = self.roll(day + step, step)
        return day


def shown_at(wall: datetime, zone: ZoneInfo, gap: str, repeat: str) -> list[datetime]:
    """The instants of a wall time."""
    both = sorted({wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)})
    real = [at for at in both if at.astimezone(zone).replace(tzinfo=None) == wall]
    if len(real) == 2:
        return {"first": real[:1], "second": real[1:], "both": real}[repeat]
    if real:
        return real
    before = wall.replace(tzinfo=zone, fold=0).utcoffset()
    assert before is not None
    if gap == "skip":
        return []
    if gap == "shift":
        return [(wall - before).replace(tzinfo=UTC)]
    low, high = (wall - before - timedelta(hours=26)).replace(tzinfo=UTC), (wall - before).replace(tzinfo=UTC)
    while high - low > timedelta(seconds=1):  # the change of the clock
        middle = low + (high - low) // 2
        if middle.astimezone(zone).utcoffset() == high.astimezone(zone).utcoffset():
            high = middle
        else:
            low = middle
    return [high.replace(microsecond=0)]


def expected(
    trigger: BusinessDay, oracle: Oracle, zone: ZoneInfo, policies: tuple[str, str], since: datetime, until: datetime
) -> list[Instant]:
    margin = timedelta(days=60 + 3 * abs(trigger.offset))
    inner = trigger.trigger.list_fires(to_instant(since - margin), to_instant(until + margin), 10**6)
    found: set[Instant] = set()
    moves: dict[date, date | None] = {}
    for fire in inner:
        wall = to_datetime(fire).astimezone(zone).replace(tzinfo=None)
        if wall.date() not in moves:
            moves[wall.date()] = oracle.moved(wall.date(), trigger.convention, trigger.offset)
        day = moves[wall.date()]
        if day == wall.date():
            found.add(fire)
        elif day is not None:
            found.update(to_instant(at) for at in shown_at(datetime.combine(day, wall.time()), zone, *policies))
    return sorted(fire for fire in found if to_instant(since) < fire <= to_instant(until))


ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Amman", "Africa/Cairo", "America/Sao_Paulo", "Pacific/Apia",
    "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Asia/Tehran", "America/Havana",
)  # fmt: skip
RULES = (
    "0 9 * * *", "30 2 * * *", "0 0 * * *", "15 23 L * *", "0 9 1,15 * *", "0 17 LW * *", "*/40 * * * 0,6",
    "30 1,2,3 * * 0,5,6", "0 0,12 1 1 *", "59 23 * * 5", "10 0 * * 0",
)  # fmt: skip


def made(
    chance: random.Random, zones: tuple[str, ...] = ZONES
) -> tuple[BusinessDay, Oracle, ZoneInfo, tuple[str, str]]:
    zone = chance.choice(zones)
    first = date(1998, 1, 1)
    some = [str(first + timedelta(days=chance.randrange(30 * 366))) for _ in range(chance.randrange(300))]
    for _ in range(chance.randrange(4)):  # long breaks
        begin = first + timedelta(days=chance.randrange(30 * 366))
        some += [str(begin + timedelta(days=each)) for each in range(chance.randrange(1, 45))]
    content = Content(
        weekend=chance.choice([("SAT", "SUN"), ("FRI", "SAT"), ("SUN",), (), ("MON", "WED", "THU", "SUN")]),
        dates=tuple(some),
        rules=tuple(
            f"FREQ=YEARLY;BYMONTH={chance.randint(1, 12)};BYMONTHDAY={chance.randint(1, 28)}" for _ in range(3)
        ),
        business_days=tuple(str(first + timedelta(days=chance.randrange(30 * 366))) for _ in range(40)),
        ends_on=chance.choice([None, "2015-06-30"]),
    )
    gap, repeat = chance.choice(["shift", "skip", "run_at_transition"]), chance.choice(["first", "second", "both"])
    inner: Trigger = cron(chance.choice(RULES), zone, gap=gap, repeat=repeat)
    if chance.random() < 0.15:
        lines = "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=8;BYMINUTE=30;BYSECOND=0"
        inner = rrule(lines, zone, gap=gap, repeat=repeat)
    if chance.random() < 0.1:
        inner = any_of(inner, cron("45 13 * * 0,6", zone, gap=gap, repeat=repeat))
    offset = chance.choice([0, 0, 0, 1, -1, 2, -3, 10, -20])
    trigger = business_day(inner, "c", convention=chance.choice(list(Convention)), offset=offset, content=content)
    return trigger, Oracle(content), ZoneInfo(zone), (gap, repeat)


def check(seed: int, years: int, zones: tuple[str, ...] = ZONES) -> None:
    chance = random.Random(seed)
    trigger, oracle, zone, policies = made(chance, zones)
    begin = datetime(1998 + chance.randrange(31 - years), 1, 1, tzinfo=UTC)
    until = begin.replace(year=begin.year + years)
    want = expected(trigger, oracle, zone, policies, begin, until)
    got = trigger.list_fires(to_instant(begin), to_instant(until), 10**6)
    if got != want:
        odd = sorted(set(got) ^ set(want))[:5]
        raise AssertionError(
            f"seed {seed}: {trigger.words()} in {zone}: {[(to_datetime(each), each in set(want)) for each in odd]}"
        )
    for _ in range(20):  # any instant may be asked about, not fire times alone
        after = to_instant(begin) + chance.randrange(to_instant(until) - to_instant(begin))
        assert trigger.next_fire(after) == next(
            (fire for fire in want if fire > after), trigger.next_fire(want[-1] if want else after)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "years"), [(CASES, 1), pytest.param(10 * CASES, 3, marks=pytest.mark.proof)], ids=["some", "many"]
)
def test_every_fire_time_is_the_one_that_the_conventions_give(cases: int, years: int) -> None:
    for seed in range(cases):
        check(seed, years)


@pytest.mark.parametrize("convention", list(Convention))
@pytest.mark.parametrize("repeat", ["first", "second", "both"])
def test_the_end_of_a_day_that_is_shown_again_after_midnight_is_found_once(convention: Convention, repeat: str) -> None:
    # At 00:01 on 29 October 2006 the clock of St John's went back to 23:01 of the day before.
    saturday_off = Content(weekend=(), dates=("2006-10-28",))
    for minute in ("15 23 * * *", "*/20 * * * *"):
        inner = cron(minute, "America/St_Johns", repeat=repeat)
        trigger = business_day(inner, "c", convention=convention, content=saturday_off)
        begin, until = (to_instant(datetime(2006, 10, day, 12, tzinfo=UTC)) for day in (26, 31))
        want = expected(
            trigger,
            Oracle(saturday_off),
            ZoneInfo("America/St_Johns"),
            ("shift", repeat),
            *map(to_datetime, (begin, until)),
        )
        assert trigger.list_fires(begin, until, 10**4) == want


@pytest.mark.slow
def test_zones_that_change_at_midnight_change_nothing_else() -> None:
    for seed in (*range(60), 668):
        check(seed, 1, ("America/St_Johns",))
        check(seed, 1, ("America/Havana", "America/Asuncion", "Asia/Amman", "America/Scoresbysund"))
    check(668, 3)


# ---- in phrases

BANK = Content(dates=("2027-01-01", "2027-01-29", "2027-02-01"))


@pytest.mark.parametrize(
    ("text", "fires", "words"),
    [
        (
            "last business day of the month at 5pm (target2)",
            ["2027-01-28 17:00", "2027-02-26 17:00"],
            "on the last day of the month at 17:00, UTC, moved to the preceding business day (calendar target2)",
        ),
        (
            "the 3rd business day of each month on calendar de-be",
            ["2027-01-06 00:00", "2027-02-04 00:00"],
            "on the 1st of the month at 00:00, UTC, moved to the following business day, 2 business days after"
            " (calendar de-be)",
        ),
        (
            "first business day of the quarter at 9am (calendar target2)",
            ["2027-01-04 09:00", "2027-04-01 09:00"],
            None,
        ),
        (
            "every business day at 9am on calendar de-be",
            ["2027-01-04 09:00", "2027-01-05 09:00"],
            "every day at 09:00, UTC, on business days only (calendar de-be)",
        ),
        ("every friday at 9am (de-be)", ["2027-01-08 09:00", "2027-01-15 09:00"], None),
        (
            "every 2 hours between 9am and noon on business days (de-be)",
            ["2027-01-04 09:00", "2027-01-04 11:00"],
            "every 2 hours, from 09:00 to 12:00, on business days only (calendar de-be), UTC",
        ),
        (
            "every business day at 9am and every saturday at noon (de-be)",
            ["2027-01-02 12:00", "2027-01-04 09:00"],
            None,
        ),
        (
            "every business day at 9am except on mondays, calendar de-be, in Europe/Berlin",
            ["2027-01-05 08:00", "2027-01-06 08:00"],
            None,
        ),
    ],
)
def test_a_phrase_names_a_calendar(text: str, fires: list[str], words: str | None) -> None:
    bare = when(text)
    name = "de-be" if "de-be" in text else "target2"
    assert bare.calendar == name
    with pytest.raises(InvalidTrigger, match="not known here"):
        bare.fires(datetime(2027, 1, 1, tzinfo=UTC), 1)
    known = parse_trigger({**bare.spec(), "days": {"dates": list(BANK.dates)}})
    found = known.fires(datetime(2027, 1, 1, tzinfo=UTC), 2)
    assert [fire.strftime("%Y-%m-%d %H:%M") for fire in found] == fires
    assert words is None or known.words() == words
    assert parse_trigger(known.spec()) == known


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("every day at 9am (a) (b)", "a second calendar"),
        ("tomorrow at 9am (de-be)", "a calendar makes no sense"),
        ("every day at 9am ()", "not understood"),
        ("every day at 9am on calendar", "calendar"),
    ],
)
def test_a_calendar_that_a_phrase_can_not_have_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidTrigger, match=problem):
        when(text)


def test_days_without_a_calendar_are_refused() -> None:
    with pytest.raises(InvalidTrigger, match="names no calendar"):
        parse_trigger({"type": "phrase", "text": "every day at 9am", "days": {"dates": []}})
