"""`interval`: multiples of a duration from an anchor; all of it arithmetic."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import DAY, INSTANT_MAX, SECOND, to_datetime, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import Interval, Trigger, every, parse_trigger, when

START = datetime(2026, 11, 16, 10, 7, tzinfo=UTC)


def test_unanchored_it_fires_at_the_multiples_since_the_epoch() -> None:
    assert every("15m").fires(START, 2) == [START.replace(minute=15), START.replace(minute=30)]


def test_a_job_counts_from_its_anchor_and_first_fires_one_interval_later() -> None:
    anchored = every("15m").anchored(to_instant(START))
    assert anchored.fires(START, 2) == [START + timedelta(minutes=15), START + timedelta(minutes=30)]
    assert anchored.anchored(to_instant(START) + 1) == anchored


def test_an_explicit_anchor_is_itself_a_fire_time() -> None:
    trigger = every("1h", anchor=START)
    assert trigger.fires(START - timedelta(days=9), 2) == [START, START + timedelta(hours=1)]
    assert trigger.anchored(0) == trigger


def test_it_does_not_drift_over_a_century() -> None:
    anchored = every(7).anchored(to_instant(START))
    late = to_instant(START) + 100 * 365 * DAY
    fire = anchored.next_fire(late)
    assert fire is not None
    assert (fire - to_instant(START)) % (7 * SECOND) == 0


@pytest.mark.parametrize(
    ("given", "micros"),
    [
        ("90s", 90 * SECOND),
        ("5m", 300 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1h 30m", 5400 * SECOND),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        (" 1W2D ", 9 * DAY),
        (60, 60 * SECOND),
        (1.5, 1_500_000),
        (timedelta(hours=2), 7200 * SECOND),
        (timedelta(seconds=1, microseconds=1), 1_000_001),
    ],
)
def test_durations(given: timedelta | str | float, micros: int) -> None:
    trigger = every(given)
    assert trigger.every == micros
    assert parse_trigger(trigger.spec()) == trigger


@pytest.mark.parametrize(
    "given", ["", "5", "m", "5x", "-5m", "1.5h", "30m1h", "PT5M", "0s", "4000d", "1e9s", "5m\x00", "９s", "9" * 100_000]
)
def test_other_texts_are_refused(given: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        every(given)
    assert caught.value.field == "every_seconds"


@pytest.mark.parametrize(
    "seconds", [0, -1, 0.049, 3_653 * 86_400 + 1, 10**20, 10**4000, float("nan"), float("inf"), True, "60", None, [60]]
)
def test_seconds_out_of_range_are_refused(seconds: object) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        parse_trigger({"type": "interval", "every_seconds": seconds})
    assert caught.value.field == "trigger.every_seconds"
    assert len(str(caught.value)) < 400


def test_the_limits_themselves_are_allowed() -> None:
    assert every(0.05).every == SECOND // 20
    assert every("50ms").every == SECOND // 20
    assert every(timedelta(days=3_653)).every == 3_653 * DAY


@given(
    st.integers(SECOND, 3_653 * DAY),
    st.one_of(st.none(), st.integers(0, INSTANT_MAX - 1)),
    st.integers(-DAY, INSTANT_MAX),
    st.integers(0, 400),
)
def test_counting_and_the_last_fire_agree_with_walking(size: int, anchor: int | None, after: int, span: int) -> None:
    trigger = Interval(size, anchor)
    until = after + span * size // 7
    walked = Trigger.list_fires(trigger, after, until, 1000)
    assert all(after < fire <= until for fire in walked)
    assert trigger.count_fires(after, until, 1000) == len(walked)
    assert trigger.count_fires(after, until, 3) == min(3, len(walked))
    assert trigger.last_fire(after, until) == (walked[-1] if walked else None)
    assert parse_trigger(trigger.spec()) == trigger


def test_counting_a_century_of_seconds_takes_no_time() -> None:
    began = time.process_time()
    assert every(1).count_fires(0, 100 * 365 * DAY, 10**12) == 100 * 365 * 86_400
    assert every(1).last_fire(0, 100 * 365 * DAY) == 100 * 365 * DAY
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("5m", "every 5 minutes"),
        ("1h", "every hour"),
        ("1h30m", "every 1 hour and 30 minutes"),
        ("1w", "every week"),
        (1.5, "every 1.5 seconds"),
    ],
)
def test_words(given: str, words: str) -> None:
    assert str(every(given)) == words


def test_milliseconds_are_read_written_and_said() -> None:
    quarter = parse_trigger({"type": "interval", "every_seconds": 0.25})
    assert quarter == every("250ms") == every(timedelta(milliseconds=250))
    assert quarter.spec() == {"type": "interval", "every_seconds": 0.25}
    assert str(quarter) == "every 0.25 seconds"
    assert every("1s500ms").every == 3 * SECOND // 2
    anchored = every("250ms").anchored(to_instant(START))
    assert [fire.microsecond for fire in anchored.fires(START, 5)] == [250_000, 500_000, 750_000, 0, 250_000]
    assert parse_trigger(anchored.spec()) == anchored


# ---- counted from the end


def test_one_that_counts_from_the_end_says_so_and_comes_back() -> None:
    rule = every("5m", from_end=True)
    assert rule.spec() == {"type": "interval", "every_seconds": 300, "from": "end"}
    assert parse_trigger(rule.spec()) == rule
    assert (rule.words(), rule.after_end) == ("every 5 minutes after the end of the last run", 300 * SECOND)
    assert every("5m").after_end is None
    start = to_datetime(SECOND)
    assert rule.anchored(SECOND).next_after(start) == start + timedelta(minutes=5), "if the run ended then"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"from": "start"}, "from"), ({"from": 1}, "from"),
        ({"from": "end", "anchor": "2026-01-01T00:00:00Z"}, "anchor"),
    ],
)  # fmt: skip
def test_what_else_it_may_be_counted_from_is_refused(spec: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidTrigger) as refused:
        parse_trigger({"type": "interval", "every_seconds": 5, **spec})
    assert refused.value.field == f"trigger.{field}"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("every 5 minutes after the last run", 300), ("every minute after the end of the last run", 60),
        ("every 2 hours after the previous run has finished", 7_200), ("every day after the last run ended", 86_400),
        ("every other week after the last run", 1_209_600),
    ],
)  # fmt: skip
def test_phrases_count_from_the_end_too(text: str, seconds: int) -> None:
    rule = when(text, timezone="Europe/Berlin")
    assert rule.after_end == seconds * SECOND
    assert when(rule.words()).after_end == seconds * SECOND, "what is shown back means the same"


@pytest.mark.parametrize(
    "text",
    [
        "every month after the last run", "every 5 minutes after", "every 5 minutes after the last monday",
        "after the last run", "every 5 minutes after the last run, 10 times", "every day at 9 after the last run",
        "every 5 minutes after the last run starting tomorrow",
    ],
)  # fmt: skip
def test_a_phrase_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidTrigger):
        when(text)


def test_it_is_limited_but_not_joined_with_others() -> None:
    inner = {"type": "interval", "every_seconds": 5, "from": "end"}
    bounded = parse_trigger({"type": "between", "trigger": inner, "until": "2099-01-01T00:00:00Z"})
    assert bounded.after_end == 5 * SECOND
    with pytest.raises(InvalidTrigger, match="can't be combined"):
        parse_trigger({"type": "any_of", "triggers": [{"type": "cron", "expression": "@daily"}, inner]})
