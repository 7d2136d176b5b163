"""Phrases as people write them: what they fire, or the question that settles them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from horarium.clock import to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import Phrase, when

from .phrases_as_people_write_them import REFUSED, UNDERSTOOD
from .phrases_composed import ASKED, COMPOSED, SAID_BACK

WALL_NOW = datetime(2026, 11, 20, 12)


def expectation(row: str) -> tuple[list[str], bool, str | None]:
    """The fire times with their years, whether more follow, and the zone that must have been understood."""
    words = row.split()
    zone = words.pop() if "/" in words[-1] else None
    more = words[-1] == "..."
    fires = " ".join(words).replace("...", "").strip(" ,").split(", ")
    return [fire if fire[:2] == "20" and fire[4] == "-" else f"2026-{fire}" for fire in fires], more, zone


@pytest.mark.parametrize(("text", "zone", "row"), [row for row in (*UNDERSTOOD, *COMPOSED) if row[2]])
def test_a_phrase_fires_when_people_mean(text: str, zone: str, row: str) -> None:
    fires, more, named = expectation(row)
    phrase = when(text, zone)
    assert isinstance(phrase, Phrase)
    assert phrase.zone == (named or zone)
    now = WALL_NOW.replace(tzinfo=ZoneInfo(phrase.zone)).astimezone(UTC)
    anchored = phrase.anchored(to_instant(now))
    found = anchored.fires(now, len(fires) + 1)
    said = [f"{fire.astimezone(ZoneInfo(phrase.zone)):%Y-%m-%d %H:%M}" for fire in found]
    assert said[: len(fires)] == fires
    assert (len(found) > len(fires)) == more
    assert anchored.words()


@pytest.mark.parametrize(("text", "word"), REFUSED)
def test_what_is_ambiguous_is_refused_with_the_question_that_settles_it(text: str, word: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        when(text).anchored(0)
    assert word in caught.value.message


@pytest.mark.parametrize(("text", "words"), ASKED)
def test_a_slip_or_two_readings_are_asked_back(text: str, words: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        when(text).anchored(to_instant(WALL_NOW.replace(tzinfo=UTC)))
    assert words in caught.value.message


@pytest.mark.parametrize("text", ["5 4 * *", "* * *", "*/5 9-17 * *", "0 3 * * * * * *"])
def test_a_cron_expression_of_the_wrong_length_is_seen_as_one(text: str) -> None:
    with pytest.raises(InvalidTrigger, match=f"cron expression.* {len(text.split())} fields"):
        when(text)


def test_an_error_says_what_was_understood() -> None:
    with pytest.raises(InvalidTrigger) as caught:
        when("every weekday at 9am bananas")
    assert "'bananas' at position 21" in caught.value.message
    assert "understood so far: 'every weekday at 9am'" in caught.value.message
    assert caught.value.position == 21


@pytest.mark.parametrize(("text", "words"), SAID_BACK)
def test_words_say_all_of_the_rule(text: str, words: str) -> None:
    assert str(when(text)).removesuffix(" (counted from when it is defined)") == f"{words}, UTC"


@pytest.mark.parametrize("text", ["last friday before christmas", "the 1st before december 24 at 6pm"])
def test_a_day_before_a_date_is_not_that_of_each_month(text: str) -> None:
    with pytest.raises(InvalidTrigger, match="is that one day"):
        when(text)
