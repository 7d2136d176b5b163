"""Phrases with a step of days or longer: they compile to an rrule that starts at the first day that fits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horarium.clock import to_instant
from horarium.triggers import parse_trigger, when

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)  # a Monday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("every other tuesday at 9:34am", ["2026-11-17 09:34", "2026-12-01 09:34", "2026-12-15 09:34"]),
        ("every 2 weeks on monday and wednesday at 7am", ["2026-11-18 07:00", "2026-11-30 07:00", "2026-12-02 07:00"]),
        ("every other day at 9am", ["2026-11-17 09:00", "2026-11-19 09:00", "2026-11-21 09:00"]),
        ("every third day at 9am and 5pm", ["2026-11-16 17:00", "2026-11-19 09:00", "2026-11-19 17:00"]),
        ("every 2 days starting 2026-12-01 at 9am", ["2026-12-01 09:00", "2026-12-03 09:00", "2026-12-05 09:00"]),
        ("every 3 months on the 15th at 9am", ["2026-12-15 09:00", "2027-03-15 09:00", "2027-06-15 09:00"]),
        ("last friday of every other month at 6pm", ["2026-11-27 18:00", "2027-01-29 18:00", "2027-03-26 18:00"]),
        ("every 6 months", ["2026-12-01 00:00", "2027-06-01 00:00", "2027-12-01 00:00"]),
        ("every 2 years on march 15th", ["2027-03-15 00:00", "2029-03-15 00:00", "2031-03-15 00:00"]),
        (
            "every other week on friday at 4pm until december 31",
            ["2026-11-20 16:00", "2026-12-04 16:00", "2026-12-18 16:00"],
        ),
    ],
)
def test_a_step_counts_from_the_first_day_that_fits(text: str, expected: list[str]) -> None:
    trigger = when(text)
    assert [fire.strftime("%Y-%m-%d %H:%M") for fire in trigger.fires(NOW, 3)] == expected
    anchored = trigger.anchored(to_instant(NOW))
    assert [fire.strftime("%Y-%m-%d %H:%M") for fire in anchored.fires(NOW, 3)] == expected
    assert parse_trigger(anchored.spec()) == anchored


def test_words_say_the_step() -> None:
    text = "every other tuesday at 9:34am"
    assert str(when(text, "Europe/Berlin", NOW)) == "every 2 weeks on Tuesday at 09:34, Europe/Berlin"
