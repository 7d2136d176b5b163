"""`phrase`: what is understood, what is refused, and that a phrase is understood wholly or not at all."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horarium.clock import to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import Phrase, parse_trigger, when
from horarium.triggers.phrase_words import TEXT_MAX
from tests.searching import tries

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)  # a Monday


def said(text: str, count: int = 3, timezone: str = "UTC", after: datetime = NOW) -> list[str]:
    return [fire.strftime("%Y-%m-%d %H:%M") for fire in when(text, timezone).fires(after, count)]


UNDERSTOOD = [
    ("every weekday at 6pm", ["2026-11-16 18:00", "2026-11-17 18:00", "2026-11-18 18:00"]),
    ("last friday of the month", ["2026-11-27 00:00", "2026-12-25 00:00", "2027-01-29 00:00"]),
    ("in 20 minutes", ["2026-11-16 10:20"]),
    ("every 3rd monday at noon in America/New_York", ["2026-11-16 17:00", "2026-12-21 17:00", "2027-01-18 17:00"]),
    ("twice a day", ["2026-11-16 12:00", "2026-11-17 00:00", "2026-11-17 12:00"]),
    ("every day at 9am", ["2026-11-17 09:00", "2026-11-18 09:00", "2026-11-19 09:00"]),
    ("every 15 minutes", ["2026-11-16 10:15", "2026-11-16 10:30", "2026-11-16 10:45"]),
    ("every hour on the half hour", ["2026-11-16 10:30", "2026-11-16 11:30", "2026-11-16 12:30"]),
    ("first of the month at midnight", ["2026-12-01 00:00", "2027-01-01 00:00", "2027-02-01 00:00"]),
    ("mondays and thursdays at 8:30", ["2026-11-19 08:30", "2026-11-23 08:30", "2026-11-26 08:30"]),
    ("tomorrow at noon", ["2026-11-17 12:00"]),
    ("next friday at 5pm", ["2026-11-20 17:00"]),
    ("first day of every quarter at 6am", ["2027-01-01 06:00", "2027-04-01 06:00", "2027-07-01 06:00"]),
    ("every year on march 15th", ["2027-03-15 00:00", "2028-03-15 00:00", "2029-03-15 00:00"]),
    ("on december 24th at 6pm", ["2026-12-24 18:00"]),
    ("every second sunday of march at 2am", ["2027-03-14 02:00", "2028-03-12 02:00", "2029-03-11 02:00"]),
    ("Every Monday and Thursday at 8:30", ["2026-11-19 08:30", "2026-11-23 08:30", "2026-11-26 08:30"]),
    ("daily at noon", ["2026-11-16 12:00", "2026-11-17 12:00", "2026-11-18 12:00"]),
    ("hourly", ["2026-11-16 11:00", "2026-11-16 12:00", "2026-11-16 13:00"]),
    ("every minute", ["2026-11-16 10:01", "2026-11-16 10:02", "2026-11-16 10:03"]),
    ("last day of the month at 11pm", ["2026-11-30 23:00", "2026-12-31 23:00", "2027-01-31 23:00"]),
    ("on the first day of every month at 7:15 am", ["2026-12-01 07:15", "2027-01-01 07:15", "2027-02-01 07:15"]),
    ("every quarter", ["2027-01-01 00:00", "2027-04-01 00:00", "2027-07-01 00:00"]),
    ("last friday of every quarter at 4pm", ["2026-12-25 16:00", "2027-03-26 16:00", "2027-06-25 16:00"]),
    ("every 2 hours", ["2026-11-16 12:00", "2026-11-16 14:00", "2026-11-16 16:00"]),
    ("at 9am and 5pm", ["2026-11-16 17:00", "2026-11-17 09:00", "2026-11-17 17:00"]),
    ("every day at 9am, noon and 5:30 p.m.", ["2026-11-16 12:00", "2026-11-16 17:30", "2026-11-17 09:00"]),
    ("every 15 minutes between 4pm and 4:30pm", ["2026-11-16 16:00", "2026-11-16 16:15", "2026-11-16 16:30"]),
    ("every 45 minutes from 9:00 to 10:30 on weekdays", ["2026-11-16 10:30", "2026-11-17 09:00", "2026-11-17 09:45"]),
    ("every weekday except friday at 9am", ["2026-11-17 09:00", "2026-11-18 09:00", "2026-11-19 09:00"]),
    ("every 10 minutes starting tomorrow at 9am", ["2026-11-17 09:00", "2026-11-17 09:10", "2026-11-17 09:20"]),
    ("every day starting 2027-01-01 at 9am", ["2027-01-01 09:00", "2027-01-02 09:00", "2027-01-03 09:00"]),
    ("every second tuesday of the month at 9am", ["2026-12-08 09:00", "2027-01-12 09:00", "2027-02-09 09:00"]),
    ("every 1st and 15th at noon", ["2026-12-01 12:00", "2026-12-15 12:00", "2027-01-01 12:00"]),
    ("first and third monday of the month at 10am", ["2026-12-07 10:00", "2026-12-21 10:00", "2027-01-04 10:00"]),
    ("weekly on friday at 5pm", ["2026-11-20 17:00", "2026-11-27 17:00", "2026-12-04 17:00"]),
    ("weekly", ["2026-11-23 00:00", "2026-11-30 00:00", "2026-12-07 00:00"]),
    ("monthly on the 5th at 9am", ["2026-12-05 09:00", "2027-01-05 09:00", "2027-02-05 09:00"]),
    ("friday at 5pm", ["2026-11-20 17:00"]),
    ("monday at 11am", ["2026-11-16 11:00"]),
    ("monday at 9am", ["2026-11-23 09:00"]),
    ("every half hour", ["2026-11-16 10:30", "2026-11-16 11:00", "2026-11-16 11:30"]),
    ("every hour at quarter past", ["2026-11-16 10:15", "2026-11-16 11:15", "2026-11-16 12:15"]),
    ("in half an hour", ["2026-11-16 10:30"]),
    ("in 3 days", ["2026-11-19 10:00"]),
    ("in 2 months at 9am", ["2027-01-16 09:00"]),
    ("december 31, 2026 at 9am", ["2026-12-31 09:00"]),
    ("on the 24th of december at 6pm", ["2026-12-24 18:00"]),
    ("every monday to friday at 9am", ["2026-11-17 09:00", "2026-11-18 09:00", "2026-11-19 09:00"]),
    ("last weekday of the month at 5pm", ["2026-11-30 17:00", "2026-12-31 17:00", "2027-01-29 17:00"]),
    ("last day of the year at noon", ["2026-12-31 12:00", "2027-12-31 12:00", "2028-12-31 12:00"]),
    ("at noon on mondays", ["2026-11-16 12:00", "2026-11-23 12:00", "2026-11-30 12:00"]),
    ("every january at noon", ["2027-01-01 12:00", "2028-01-01 12:00", "2029-01-01 12:00"]),
    ("three times an hour", ["2026-11-16 10:20", "2026-11-16 10:40", "2026-11-16 11:00"]),
    ("every day at 9am america/new_york", ["2026-11-16 14:00", "2026-11-17 14:00", "2026-11-18 14:00"]),
]


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD)
def test_a_phrase_is_understood(text: str, expected: list[str]) -> None:
    assert said(text, 3) == expected
    trigger = when(text)
    assert parse_trigger(trigger.spec()) == trigger
    anchored = trigger.anchored(to_instant(NOW))
    assert parse_trigger(anchored.spec()) == anchored
    assert [fire.strftime("%Y-%m-%d %H:%M") for fire in anchored.fires(NOW, 3)] == expected


def test_weekends_excepted_are_excepted() -> None:
    fires = when("every day at 9am except weekends").fires(NOW, 50)
    assert {fire.weekday() for fire in fires} == {0, 1, 2, 3, 4}
    assert len({fire.date() for fire in fires}) == 50


def test_until_includes_its_day_and_ends() -> None:
    fires = when("every monday at 10am until december 28 2026").fires(NOW, 50)
    assert [fire.day for fire in fires] == [23, 30, 7, 14, 21, 28]
    assert when("every 5 minutes until tomorrow at 10am").anchored(to_instant(NOW)).fires(NOW, 999)[
        -1
    ] == NOW + timedelta(days=1)


WITH_A_TIME_AT_THE_END = [
    ("every day until friday at 9am", "17 09:00, 18 09:00, 19 09:00, 20 09:00"),
    ("until friday 9am every day", "17 09:00, 18 09:00, 19 09:00, 20 09:00"),
    ("every day until 9am on november 18", "17 09:00, 18 09:00"),
    ("every day at 8am until friday at 9am", "17 08:00, 18 08:00, 19 08:00, 20 08:00"),
    ("every day at 10am until wednesday at 9am", "17 10:00"),
    ("every day until wednesday at 9am and 5pm", "16 17:00, 17 09:00, 17 17:00, 18 09:00, 18 17:00"),
    ("every day starting tomorrow at 9am and 5pm until 2026-11-18", "17 09:00, 17 17:00, 18 09:00, 18 17:00"),
    ("every day from tomorrow until november 19 at 9am", "17 09:00, 18 09:00, 19 09:00"),
    ("every day starting tomorrow at 9am until thursday at 10am", "17 09:00, 18 09:00, 19 09:00"),
    ("every day until wednesday at 17", "16 17:00, 17 17:00, 18 17:00"),
    ("every hour until 1pm today", "16 11:00, 16 12:00, 16 13:00"),
    ("every day from friday at 8am until monday at 9am", "20 08:00, 21 08:00, 22 08:00, 23 08:00"),
    ("every day starting friday at 8am until monday at 7am", "20 08:00, 21 08:00, 22 08:00"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WITH_A_TIME_AT_THE_END)
def test_the_time_beside_an_end_is_that_of_the_runs_unless_they_have_their_own(text: str, expected: str) -> None:
    assert [fire.strftime("%d %H:%M") for fire in when(text).fires(NOW, 50)] == expected.split(", ")
    assert [fire.strftime("%d %H:%M") for fire in when(text, "UTC", NOW).fires(NOW, 50)] == expected.split(", ")


def test_the_time_beside_an_end_is_said_back() -> None:
    assert str(when("every day until friday at 9am")).startswith(
        "every day at 09:00, until the next Friday at 09:00, UTC"
    )


def test_a_week_from_monday_to_friday_may_be_ahead_as_a_whole() -> None:
    thursday = NOW + timedelta(days=3)
    fires = when("every hour from monday at 8am until friday at 9am").fires(thursday, 200)
    assert (fires[0], fires[-1]) == (datetime(2026, 11, 23, 8, tzinfo=UTC), datetime(2026, 11, 27, 9, tzinfo=UTC))
    assert len(fires) == 4 * 24 + 2


def test_dates_excepted_come_back_every_year_unless_they_have_a_year() -> None:
    assert said("every year on december 25th except december 25 2026", 2) == ["2027-12-25 00:00", "2028-12-25 00:00"]
    fires = when("every day at noon except december 25th and january 1st").fires(NOW, 800)
    assert not {(fire.month, fire.day) for fire in fires} & {(12, 25), (1, 1)}
    assert {fire.month for fire in when("every day except july").fires(NOW, 700)} == set(range(1, 13)) - {7}


def test_the_zone_in_the_text_or_beside_it() -> None:
    assert (
        said("every day at 9am", 1, "Europe/Berlin")
        == said("every day at 9am Europe/Berlin", 1)
        == ["2026-11-17 08:00"]
    )
    assert said("every day at 9am in Europe/Berlin", 1, "Europe/Berlin") == ["2026-11-17 08:00"]
    with pytest.raises(InvalidTrigger) as caught:
        when("every day at 9am in Europe/Berlin", "Asia/Tokyo")
    assert caught.value.field == "timezone"


def test_wall_times_that_the_clock_skips_are_shifted_as_the_rfc_says() -> None:
    spring = datetime(2026, 3, 28, 20, tzinfo=UTC)
    assert said("every day at 2:30am in Europe/Berlin", 2, after=spring) == ["2026-03-29 01:30", "2026-03-30 00:30"]
    assert said("tomorrow at 2:30am in Europe/Berlin", 1, after=spring) == ["2026-03-29 01:30"]


def test_relative_phrases_are_fixed_by_their_anchor() -> None:
    anchored = when("in 20 minutes").anchored(to_instant(NOW))
    assert anchored.fires(NOW - timedelta(days=9), 5) == [NOW + timedelta(minutes=20)]
    assert anchored.anchored(0) == anchored
    assert when("every day at 9am").anchored(to_instant(NOW)) == when("every day at 9am")
    assert str(when("in 20 minutes")) == "once, 20 minutes later, UTC (counted from when it is defined)"
    assert str(anchored) == "once, on Monday 2026-11-16 at 10:20, UTC"


REFUSED = [
    ("purple monkey dishwasher", 0), ("every 0 minutes", 6), ("", 0), ("  ", 0), ("every", 5), ("every day at 9", 13),
    ("every day at 9am foo", 17), ("every day at 9am at 10am", 17), ("every day at 9am please run it", 17),
    ("every day at 25:00", 13), ("every day at 13pm", 13), ("every day at 9:60", 13), ("every night", 6),
    ("every -5 minutes", 6),
    ("every 1.5 months", 7), ("every second tuesday at 9am", 6), ("every other weekday at 9am", 12),
    ("on february 30th", 3),
    ("in 20", 5), ("in 20 bananas", 6), ("next week", 5), ("every 10001 minutes", 6), ("every day except", 16),
    ("every day until", 15), ("every day between 5pm and 5pm", 10), ("every 99999999999 minutes", 6),
    ("every day\nat 9am", 9),
    ("every day \x00", 10), ("every day at ９am", 13), ("täglich", 0), ("every day; rm -rf", 9), ("7 times a day", 0),
    ("every sixth monday of the month", 6), ("every 32nd of the month", 6),
    ("every day in Europe/Berlin in Asia/Tokyo", 30),
]  # fmt: skip


@pytest.mark.parametrize(("text", "position"), REFUSED)
def test_what_is_not_understood_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        when(text)
    assert caught.value.field == "text"
    assert caught.value.position == position, str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "in 5 minutes every day", "tomorrow at noon every week", "except weekends", "until tomorrow", "in december",
        "today",
        "in UTC", "between 9am and 5pm", "every 15 minutes at 9am", "every 7 minutes on mondays",
        "every month on monday",
        "every day on the 15th of the month", "friday at 5pm in december", "every 2 quarters", "every 31st of february",
        "in 2 hours at 9am", "every 5 seconds on mondays", "every day on december 24th",
        "on december 24 1985 until tomorrow",
        "in 10000 years", "first and last day of the quarter",
    ],
)  # fmt: skip
def test_parts_that_contradict_each_other_are_refused(text: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        when(text)
    assert caught.value.field == "text"


def test_an_unknown_zone_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidTrigger, match="Europe/Berlin") as caught:
        when("every day at 9am in Europe/Berln")
    assert caught.value.field == "timezone"


def test_words_show_what_was_understood() -> None:
    assert str(when("mondays and thursdays at 8:30")) == "every Monday and Thursday at 08:30, UTC"
    assert str(when("every 3rd monday at noon in America/New_York")) == (
        "on the third Monday of the month at 12:00, America/New_York"
    )
    assert str(when("every 15 minutes between 9am and 5pm on mondays")) == (
        "every 15 minutes on Monday, from 09:00 to 17:00, UTC"
    )
    assert str(when("next friday at 5pm")).startswith("once, on the first Friday after today at 17:00, UTC")


def test_the_cap_on_length_is_exact_and_fast() -> None:
    text = "every day at 9am"
    assert when(text + " " * (TEXT_MAX - len(text))).next_fire(0) is not None
    with pytest.raises(InvalidTrigger):
        when(text + " " * (TEXT_MAX - len(text) + 1))
    for long in ("every " * 20_000, "9" * 100_000, "a" * 100_000, "1st and " * 12_000, "(" * 100_000):
        began = time.process_time()
        with pytest.raises(InvalidTrigger) as caught:
            when(long)
        assert time.process_time() - began < 1
        assert len(str(caught.value)) < 300


def read_or_refused(text: str) -> Phrase | None:
    field: str | None = "text"
    trigger = None
    try:
        trigger = when(text)
    except InvalidTrigger as error:
        field = error.field
    assert field in ("text", "timezone")
    return trigger


VOCABULARY = [
    "every",
    "each",
    "other",
    "day",
    "days",
    "week",
    "weekday",
    "weekends",
    "month",
    "quarter",
    "year",
    "hour",
    "hours",
    "minutes",
    "second",
    "1st",
    "2nd",
    "third",
    "last",
    "2",
    "15",
    "90",
    "0",
    "9am",
    "5:30pm",
    "17:00",
    "noon",
    "midnight",
    "at",
    "on",
    "the",
    "of",
    "in",
    "and",
    ",",
    "until",
    "starting",
    "except",
    "between",
    "from",
    "to",
    "tomorrow",
    "today",
    "next",
    "friday",
    "mondays",
    "tuesday",
    "march",
    "december",
    "24th",
    "2026",
    "2026-12-31",
    "2031-02-28",
    "Europe/Berlin",
    "UTC",
    "twice",
    "once",
    "a",
    "half",
    "past",
    "first",
    "daily",
]


@pytest.mark.slow
@tries(1500)
@example(["tomorrow", "friday"], 0)
@example(["today", "at", "9am"], 0)
@given(st.lists(st.sampled_from(VOCABULARY), max_size=9), st.integers(0, 7 * 10**15))
def test_any_row_of_known_words_is_read_or_refused(words: list[str], after: int) -> None:
    trigger = read_or_refused(" ".join(words))
    if trigger is None:
        return
    refused = ""
    try:
        trigger = trigger.anchored(to_instant(NOW))
    except InvalidTrigger as error:
        refused = error.message
    if refused:
        assert "that is over today" in refused or "which is meant?" in refused
        return
    fire = trigger.next_fire(after)
    assert fire is None or fire > after
    assert parse_trigger(trigger.spec()) == trigger
    assert str(trigger)


@tries(300)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    trigger = read_or_refused(text)
    assert trigger is None or trigger.text == text
