"""`cron`: grammar, days, the change of the clock, limits, words and speed. The oracles are in test_cron_oracles.py."""

from __future__ import annotations

import random
import statistics
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import DAY, HOUR, INSTANT_MAX, MINUTE, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import Cron, Trigger, cron, parse_trigger, read_stored
from horarium.triggers.cron_days import Matcher
from horarium.triggers.cron_fields import EXPRESSION_MAX
from horarium.triggers.cron_trigger import drawn
from horarium.triggers.zones import Gap, Repeat
from tests.searching import tries

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTES = ("*", "*/7", "0", "30", "0,15,45", "10-20", "5-50/5", "59")
HOURS = ("*", "*/2", "2", "1-3", "0,12,23", "3-22/4", "0")
DAYS = ("*", "*", "*/2", "1", "29", "31", "L", "LW", "15W", "L-3", "10-20")
MONTHS = ("*", "*", "2", "3,10", "*/3", "11")
WEEKDAYS = ("*", "*", "0", "MON-FRI", "5L", "SUN#2", "*/2")


def local(trigger: Cron, after: datetime, count: int) -> list[str]:
    zone = ZoneInfo(trigger.timezone)
    return [fire.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S%z") for fire in trigger.fires(after, count)]


def days(expression: str, after: datetime = NOW, count: int = 3, **options: str) -> list[str]:
    return [fire.strftime("%Y-%m-%d") for fire in cron(expression, **options).fires(after, count)]  # type: ignore[arg-type]


def random_expression(rng: random.Random) -> str:
    return " ".join(rng.choice(pool) for pool in (MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS))


def random_moment(rng: random.Random) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randint(0, 4 * 366 * 86_400))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"])
@tries(50)
@given(st.randoms(use_true_random=False))
def test_a_list_of_fire_times_is_what_one_question_after_the_other_gives(zone: str, rng: random.Random) -> None:
    expression = f"{rng.choice(['', '*/20 ', '5,59 ', '* '])}{random_expression(rng)}"
    try:
        trigger = Cron(expression, zone, gap=rng.choice([*Gap]), repeat=rng.choice([*Repeat]))
    except InvalidTrigger:
        return  # such as 31 February
    after, limit = to_instant(random_moment(rng)) + rng.randint(0, 1), rng.choice([0, 1, 2, 50, 200])
    until = after + rng.choice([-1, HOUR, 9 * DAY, 400 * DAY])
    assert trigger.list_fires(after, until, limit) == Trigger.list_fires(trigger, after, until, limit)


# --- the grammar


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 L * *", ["2026-11-30", "2026-12-31", "2027-01-31"]),
        ("0 0 L-2 * *", ["2026-11-28", "2026-12-29", "2027-01-29"]),
        ("0 0 LW * *", ["2026-11-30", "2026-12-31", "2027-01-29"]),
        ("0 0 15W * *", ["2026-12-15", "2027-01-15", "2027-02-15"]),
        ("0 0 1W 5 *", ["2027-05-03", "2028-05-01", "2029-05-01"]),
        ("0 0 31W * *", ["2026-12-31", "2027-01-29", "2027-03-31"]),
        ("0 0 * * 5L", ["2026-11-27", "2026-12-25", "2027-01-29"]),
        ("0 0 * * FRIL", ["2026-11-27", "2026-12-25", "2027-01-29"]),
        ("0 0 * * MON#2", ["2026-12-14", "2027-01-11", "2027-02-08"]),
        ("0 0 * * 7#5", ["2026-11-29", "2027-01-31", "2027-05-30"]),
        ("0 0 * * 0", ["2026-11-22", "2026-11-29", "2026-12-06"]),
        ("0 0 * * 7", ["2026-11-22", "2026-11-29", "2026-12-06"]),
        ("0 0 * * FRI-SUN", ["2026-11-21", "2026-11-22", "2026-11-27"]),
        ("0 0 * * 5-7", ["2026-11-21", "2026-11-22", "2026-11-27"]),
        ("0 0 13 * FRI", ["2026-11-27", "2026-12-04", "2026-12-11"]),
        ("0 0 */2 * MON", ["2026-11-23", "2026-12-07", "2026-12-21"]),
        ("0 0 1 * */2", ["2026-12-01", "2027-04-01", "2027-05-01"]),
        ("0 0 ? * MON", ["2026-11-23", "2026-11-30", "2026-12-07"]),
        ("0 0 0 1 1 ? 2030", ["2030-01-01"]),
        ("0 0 0 1 1 ? 2030-2032/2", ["2030-01-01", "2032-01-01"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("@weekly", ["2026-11-22", "2026-11-29", "2026-12-06"]),
        ("@YEARLY", ["2027-01-01", "2028-01-01", "2029-01-01"]),
        ("  0\t0  31 *   * ", ["2026-12-31", "2027-01-31", "2027-03-31"]),
    ],
)
def test_days(expression: str, expected: list[str]) -> None:
    assert days(expression) == expected


def test_day_match_all_asks_for_both() -> None:
    assert days("0 0 13 * FRI", day_match="all") == ["2027-08-13", "2028-10-13", "2029-04-13"]
    assert days("0 0 29 2 MON", day_match="all") == ["2044-02-29", "2072-02-29", "2112-02-29"]


def test_seconds_come_first_and_the_year_last() -> None:
    assert local(cron("*/20 5 4 * * *"), NOW, 3) == [f"2026-11-21 04:05:{s}+0000" for s in ("00", "20", "40")]
    assert local(cron("30 5 4 1 1 * 2027"), NOW, 2) == ["2027-01-01 04:05:30+0000"]


def test_the_family_of_aliases() -> None:
    firsts = {name: days(f"@{name}", count=1)[0] for name in ("hourly", "daily", "midnight", "monthly", "annually")}
    assert firsts == {
        "hourly": "2026-11-20",
        "daily": "2026-11-21",
        "midnight": "2026-11-21",
        "monthly": "2026-12-01",
        "annually": "2027-01-01",
    }


def test_the_epoch_and_the_end_of_2200_bound_all_fire_times() -> None:
    assert cron("0 0 1 1 *").next_fire(-1) == 0
    assert cron("0 0 1 1 *").next_fire(-(10**18)) == 0
    assert cron("* * * * *").next_fire(INSTANT_MAX - MINUTE) is None
    assert cron("* * * * *").next_fire(INSTANT_MAX * 1000) is None
    assert cron("0 0 1 1 *", "America/New_York").next_fire(-1) == 5 * HOUR


# --- H


def test_h_is_drawn_from_the_seed_and_spreads() -> None:
    hours = {days_and_time(cron("H H * * *", seed=f"job-{n}")) for n in range(200)}
    assert len(hours) > 150
    assert cron("H H * * *", seed="a").fires(NOW, 3) == cron("H H * * *", seed="a").fires(NOW, 3)


def days_and_time(trigger: Cron) -> str:
    return trigger.fires(NOW, 1)[0].strftime("%H:%M")


@pytest.mark.parametrize(("field", "low", "high"), [("H(0-29)", 0, 29), ("H(45-50)", 45, 50), ("H", 0, 59)])
def test_h_stays_in_its_range(field: str, low: int, high: int) -> None:
    minutes = {cron(f"{field} * * * *", seed=str(n)).fires(NOW, 1)[0].minute for n in range(300)}
    assert min(minutes) >= low
    assert max(minutes) <= high
    assert len(minutes) > (high - low) / 2


def test_h_with_a_step_keeps_the_step() -> None:
    minutes = [fire.minute for fire in cron("H/15 * * * *", seed="x").fires(NOW, 5)]
    assert {b - a for a, b in pairwise(minutes)} <= {15, -45}
    assert all(fire.day <= 28 for n in range(50) for fire in cron("0 0 H * *", seed=str(n)).fires(NOW, 2))


def test_a_job_seeds_h_and_nothing_else() -> None:
    assert cron("H * * * *").seeded("nightly") == cron("H * * * *", seed="nightly")
    assert cron("H * * * *", seed="mine").seeded("nightly").seed == "mine"
    assert cron("0 0 * * THU").seeded("nightly") == cron("0 0 * * THU")


# --- daylight saving time

BERLIN, NEW_YORK, LORD_HOWE, APIA = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"
SPRING, AUTUMN = datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "options", "expected"),
    [
        ("30 2 * * *", {}, ["2026-03-29 03:00:00+0200", "2026-03-30 02:30:00+0200"]),
        ("30 2 * * *", {"gap": "shift"}, ["2026-03-29 03:30:00+0200", "2026-03-30 02:30:00+0200"]),
        ("30 2 * * *", {"gap": "skip"}, ["2026-03-30 02:30:00+0200", "2026-03-31 02:30:00+0200"]),
        ("0,15,30 2 * * *", {}, ["2026-03-29 03:00:00+0200", "2026-03-30 02:00:00+0200"]),
        ("0,30 2,3 * * *", {"gap": "shift"}, ["2026-03-29 03:00:00+0200", "2026-03-29 03:30:00+0200"]),
        ("15 2,3 * * *", {}, ["2026-03-29 03:00:00+0200", "2026-03-29 03:15:00+0200"]),
        ("0 3 * * *", {}, ["2026-03-29 03:00:00+0200", "2026-03-30 03:00:00+0200"]),
        ("30 2 29 3 *", {}, ["2026-03-29 03:00:00+0200", "2027-03-29 02:30:00+0200"]),
        ("5 30 2 * * *", {"gap": "shift"}, ["2026-03-29 03:30:05+0200", "2026-03-30 02:30:05+0200"]),
    ],
)
def test_fixed_times_in_a_gap(expression: str, options: dict[str, str], expected: list[str]) -> None:
    assert local(cron(expression, BERLIN, **options), SPRING, 2) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "options", "expected"),
    [
        ("30 2 * * *", {}, ["2026-10-25 02:30:00+0200", "2026-10-26 02:30:00+0100"]),
        ("30 2 * * *", {"repeat": "second"}, ["2026-10-25 02:30:00+0100", "2026-10-26 02:30:00+0100"]),
        ("30 2 * * *", {"repeat": "both"}, ["2026-10-25 02:30:00+0200", "2026-10-25 02:30:00+0100"]),
        ("0,30 2 * * *", {"repeat": "second"}, ["2026-10-25 02:00:00+0100", "2026-10-25 02:30:00+0100"]),
        ("30 2,3 * * *", {}, ["2026-10-25 02:30:00+0200", "2026-10-25 03:30:00+0100"]),
    ],
)
def test_fixed_times_in_a_fold(expression: str, options: dict[str, str], expected: list[str]) -> None:
    assert local(cron(expression, BERLIN, **options), AUTUMN, 2) == expected  # type: ignore[arg-type]


def test_asked_again_within_the_fold_a_fixed_time_stays_once() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert local(cron("30 2 * * *", BERLIN), first, 1) == ["2026-10-26 02:30:00+0100"]
    assert local(cron("30 2 * * *", BERLIN), first + timedelta(minutes=10), 1) == ["2026-10-26 02:30:00+0100"]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, APIA, "Africa/Casablanca", "America/St_Johns"])
@pytest.mark.parametrize("expression", ["*/10 * * * *", "0-59/10 0-23 * * *", "0,10,20,30,40,50 * * * *"])
def test_wildcards_follow_elapsed_time(expression: str, zone: str) -> None:
    for start in (
        datetime(2026, 3, 5, tzinfo=UTC),
        datetime(2026, 10, 1, tzinfo=UTC),
        datetime(2026, 10, 30, tzinfo=UTC),
    ):
        fires = cron(expression, zone).between(start, start + timedelta(days=6))
        assert len(fires) == 6 * 144
        assert {b - a for a, b in pairwise(fires)} == {timedelta(minutes=10)}


def test_a_change_of_half_an_hour_and_a_day_that_never_was() -> None:
    assert local(cron("15 2 * * *", LORD_HOWE), datetime(2026, 10, 3, 0, tzinfo=UTC), 1) == ["2026-10-04 02:30:00+1100"]
    gap = local(cron("0 9 * * *", APIA), datetime(2011, 12, 29, 12, tzinfo=UTC), 3)
    assert gap == ["2011-12-29 09:00:00-1000", "2011-12-31 00:00:00+1400", "2011-12-31 09:00:00+1400"]
    assert local(cron("0 9 30 12 *", APIA, gap="skip"), datetime(2011, 6, 1, tzinfo=UTC), 1)[0].startswith("2012-12-30")


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, "America/Santiago", "Asia/Beirut", "Africa/Cairo"])
def test_a_weekly_noon_keeps_its_wall_time_all_year(zone: str) -> None:
    fires = cron("0 12 * * MON", zone).between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    walls = [fire.astimezone(ZoneInfo(zone)) for fire in fires]
    assert len(fires) == 52
    assert {(wall.weekday(), wall.hour, wall.minute) for wall in walls} == {(0, 12, 0)}


# --- what is refused

REFUSED = [
    ("", 0), ("   ", 0), ("* * * *", 7), ("* * * * * * * *", 15), ("60 * * * *", 0), ("* 24 * * *", 2),
    ("* * 0 * *", 4), ("* * 32 * *", 4), ("* * * 13 *", 6), ("* * * 0 *", 6), ("* * * * 8", 8), ("*/0 * * * *", 2),
    ("*/60 * * * *", 2), ("*/ * * * *", 2), ("/5 * * * *", 0), ("5- * * * *", 2), ("-5 * * * *", 0), ("5-1 * * * *", 0),
    ("0-99999999 * * * *", 2), ("99999999999999999999 * * * *", 0), ("1,,2 * * * *", 2), (", * * * *", 0),
    ("1, * * * *", 2), ("** * * * *", 0), ("? * * * *", 0), ("* * ?/2 * *", 4), ("* * * * L", 8), ("* * * * MON#6", 12),
    ("* * * * MON#0", 12), ("* * * * MON#", 12), ("* * * * #2", 8), ("* * L-0 * *", 4), ("* * L-31 * *", 4),
    ("* * 32W * *", 4), ("* * W * *", 4), ("* L * * *", 2), ("* * * JANUARY *", 6), ("* * * FOO *", 6),
    ("* * * * MO", 8), ("0 22-2 * * *", 2), ("0 0 * NOV-FEB *", 6), ("0 0 * * SAT-MON", 8), ("H(5 * * * *", 0),
    ("H() * * * *", 0), ("H(50-70) * * * *", 5), ("* * * * * * H", 12), ("* * * * * * 1969", 12),
    ("* * * * * * 2201", 12),
    ("@reboot", 0), ("@every 5m", 0), ("@dayly", 0), ("@daily x", 0), ("0 3 * * *\n", 9), ("0 3\n* * *", 3),
    ("0 3 * * *\x00", 9), ("0 3 * * * ; $(id)", 10), ("٣ * * * *", 0), ("0 3 * * \u00a0*", 8), ("{{7*7}} * * * *", 0),
    ("0 3 * * *%0a", 8), ("TZ=UTC 0 3 * * *", 0), ("1.5 * * * *", 0), ("+5 * * * *", 0), ("0x5 * * * *", 0),
    ("² * * * *", 0),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "position"), REFUSED)
def test_a_wrong_expression_is_refused_with_its_position(expression: str, position: int) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        cron(expression)
    assert caught.value.field == "expression"
    assert caught.value.position == position, str(caught.value)
    assert (
        "expected" in str(caught.value)
        or "refused" in str(caught.value)
        or "write" in str(caught.value)
        or "is not allowed" in str(caught.value)
    )


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 29 2 ? 2027",
                                        "0 0 31W 2 *",
                                        "0 0 L-30 2 *"])  # fmt: skip
def test_a_date_that_never_comes_is_refused_at_once(expression: str) -> None:
    cron("0 0 1 1 *")
    began = time.process_time()
    with pytest.raises(InvalidTrigger, match="never fire"):
        cron(expression)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("char", ["*", "1,", " ", "9", "0 ", "\x00", "é", "-", "/", "H", "L"])
def test_a_huge_expression_is_refused_fast(char: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidTrigger) as caught:
        cron((char * 100_000)[:100_000])
    assert time.process_time() - began < 1
    assert len(str(caught.value)) < 200


def test_the_cap_on_length_is_exact() -> None:
    minutes = ",".join(["1"] * 200)[: EXPRESSION_MAX - 9] + "1"
    expression = f"{minutes} * * * *"
    assert len(expression) <= EXPRESSION_MAX
    assert cron(expression + " " * (EXPRESSION_MAX - len(expression))).next_fire(0) is not None
    with pytest.raises(InvalidTrigger):
        cron(expression + " " * (EXPRESSION_MAX - len(expression) + 1))


@tries(500)
@given(st.text(st.sampled_from("0123456789*/-,?LWH#()@ MONFRIJANdailyé\n"), max_size=40), st.integers(-1, INSTANT_MAX))
def test_any_text_is_read_or_refused(text: str, after: int) -> None:
    try:
        trigger = cron(text, BERLIN)
    except InvalidTrigger:
        return
    fire = trigger.next_fire(after)
    assert fire is None or fire > after
    assert parse_trigger(trigger.spec()) == trigger
    assert trigger.words().endswith(BERLIN)


@tries(300)
@given(st.integers(0, 10**6), st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, APIA]),
       st.integers(0, 60 * 365 * 24),
       st.sampled_from(["shift", "skip", "run_at_transition"]), st.sampled_from(["first", "second",
       "both"]))  # fmt: skip
def test_next_fire_never_goes_back_and_skips_nothing(seed: int, zone: str, hour: int, gap: str, repeat: str) -> None:
    try:
        trigger = cron(random_expression(random.Random(seed)), zone, gap=gap, repeat=repeat)
    except InvalidTrigger:
        return
    after = hour * HOUR
    fire = trigger.next_fire(after)
    if fire is not None:
        assert fire > after
        for probe in (after + 1, (after + fire) // 2, fire - 1):
            assert trigger.next_fire(min(probe, fire - 1)) == fire


# --- words and speed


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 3 * * *", "every day at 03:00"),
        ("15 15 * * 1,3,5", "every Monday, Wednesday and Friday at 15:15"),
        ("0 18 * * 1-5", "every weekday (Monday to Friday) at 18:00"),
        ("*/5 * * * *", "every 5 minutes"),
        ("* * * * *", "every minute"),
        ("0 * * * *", "every hour on the hour"),
        ("30 * * * *", "every hour at minute 30"),
        ("0 */2 * * *", "every 2 hours on the hour"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("0 9,17 * * *", "every day at 09:00 and 17:00"),
        ("*/15 9-16 * * 1-5", "every 15 minutes, during the hours 09 to 16, on every weekday (Monday to Friday)"),
        ("0 0 1,15 * *", "on the 1st and the 15th of the month at 00:00"),
        ("0 0 L * *", "on the last day of the month at 00:00"),
        ("0 12 25 12 *", "on the 25th of the month in December at 12:00"),
        ("0 0 * * MON#2", "on the second Monday of the month at 00:00"),
        ("0 0 13 * FRI", "on the 13th of the month and every Friday at 00:00"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
    ],
)
def test_words(expression: str, words: str) -> None:
    assert str(cron(expression, BERLIN)) == f"{words}, {BERLIN}"


def test_the_spec_holds_what_was_chosen() -> None:
    trigger = cron("H 3 * * *", BERLIN, day_match="all", gap="skip", repeat="both", seed="s")
    assert trigger.spec() == {
        "type": "cron", "expression": "H 3 * * *", "timezone": BERLIN, "day_match": "all", "gap": "skip",
        "repeat": "both", "seed": "s",
    }  # fmt: skip
    assert parse_trigger(trigger.spec()) == trigger
    assert hash(parse_trigger(trigger.spec())) == hash(trigger)
    assert cron("0 3 * * *") != cron("0 3 * * *", BERLIN)


def test_next_fire_is_fast_and_its_worst_is_bounded() -> None:
    rng = random.Random(7)
    triggers = [
        cron("0 0 29 2 MON", BERLIN, day_match="all"),
        cron("0 0 0 1 1 ? *", BERLIN),
        cron("30 2 * * *", BERLIN),
    ]
    while len(triggers) < 100:
        try:
            triggers.append(cron(random_expression(rng), BERLIN))
        except InvalidTrigger:
            continue
    costs = []
    for trigger in triggers:
        after = to_instant(random_moment(rng))
        trigger.next_fire(after)
        costs.append(min(timed(trigger, after) for _ in range(5)))
    assert statistics.median(costs) < 100e-6
    assert max(costs) < 1e-3


def timed(trigger: Cron, after: int) -> float:
    began = time.process_time()
    trigger.next_fire(after)
    return time.process_time() - began


@pytest.mark.parametrize(
    ("joined", "plain"), [("0 0 13 * +FRI", "0 0 13 * FRI"), ("0 12 1-7 * +MON-WED", "0 12 1-7 * MON-WED")]
)
def test_a_plus_before_the_day_of_week_asks_for_both_days(joined: str, plain: str) -> None:
    both = cron(plain, day_match="all")
    assert cron(joined).fires(NOW, 20) == both.fires(NOW, 20) != cron(plain).fires(NOW, 20)
    assert cron(joined).words() == both.words()


@pytest.mark.parametrize(
    "expression", ["0 0 +1 * MON", "+0 0 1 * MON", "0 0 1 * MON,+TUE", "0 0 1 * +", "0 0 1 * ++MON"]
)
def test_a_plus_elsewhere_is_refused(expression: str) -> None:
    with pytest.raises(InvalidTrigger, match=r"\+|expected"):
        cron(expression)


def test_the_last_weekday_in_both_spellings() -> None:
    assert cron("0 0 * * FRI#L").fires(NOW, 20) == cron("0 0 * * 5L").fires(NOW, 20)
    assert cron("0 0 * * 7#L,2#1").words() == cron("0 0 * * 0L,TUE#1").words()


@pytest.mark.parametrize(
    "expression",
    ["H * * * *", "h h * * *", "H/15 H(8-17) * * *", "H(10-20)/3 0 H * *", "5,H,50 0,H/7 L,H * +H", "0 H H 1 H THU",
     "H H 0 H,15 MAR H 2027-2030", "@hourly", "0 0 * * THU"],
)  # fmt: skip
def test_what_a_seed_chooses_can_be_written_out(expression: str) -> None:
    after = to_instant(NOW)
    for seed in ("nightly", "b", "s" * 200):
        spec = {"type": "cron", "expression": expression, "timezone": "Europe/Berlin"}
        written, seeded = read_stored(drawn(spec, seed)), cron(expression, "Europe/Berlin").seeded(seed)
        assert written == written.seeded("another")
        assert written.list_fires(after, after + 800 * DAY, 300) == seeded.list_fires(after, after + 800 * DAY, 300)
        assert drawn({**spec, "seed": "mine"}, seed) == {**spec, "seed": "mine"}


def test_a_list_of_fire_times_works_out_the_days_of_each_month_once(monkeypatch: pytest.MonkeyPatch) -> None:
    months, honest = 0, Matcher._mask

    def counted(self: Matcher, *month: int) -> int:
        nonlocal months
        months += 1
        return honest(self, *month)

    monkeypatch.setattr(Matcher, "_mask", counted)
    begin = to_instant(datetime(2027, 1, 1, tzinfo=UTC))
    assert len(cron("0 3 * * *").list_fires(begin, begin + 365 * DAY, 1_000)) == 365
    assert months <= 20
