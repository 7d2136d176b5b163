"""`once`: one instant, given as an aware datetime or RFC 3339 text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from horarium.clock import to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers import at, parse_trigger

NOON = datetime(2026, 12, 24, 12, tzinfo=UTC)


def test_it_fires_once_and_only_after_the_asked_instant() -> None:
    trigger = at(NOON)
    assert trigger.next_after(NOON - timedelta(microseconds=1)) == NOON
    assert trigger.next_after(NOON) is None
    assert trigger.fires(NOON - timedelta(days=1), 5) == [NOON]


def test_offsets_and_texts_name_the_same_instant() -> None:
    text = at("2026-12-24T13:00:00+01:00")
    assert text == at(NOON) == at(NOON.astimezone(timezone(timedelta(hours=-8)))) == at("2026-12-24t12:00:00.000z")
    assert text.spec() == {"type": "once", "at": "2026-12-24T12:00:00Z"}
    assert parse_trigger(text.spec()) == text
    assert str(text) == "once at 2026-12-24T12:00:00Z"


def test_microseconds_are_kept() -> None:
    trigger = at("2026-12-24T12:00:00.123456Z")
    assert trigger.fire_at == to_instant(NOON) + 123_456
    assert parse_trigger(trigger.spec()) == trigger


def test_a_past_instant_is_a_right_value() -> None:
    assert at("1999-12-31T23:59:59Z").next_after(NOON) is None


@pytest.mark.parametrize(
    "given",
    [
        "",
        "tomorrow",
        "2026-12-24",
        "2026-12-24T12:00:00",
        "2026-13-24T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-12-24T24:00:00Z",
        "2026-12-24T12:00:60Z",
        "2026-12-24T12:00:00+99:00",
        "20261224T120000Z",
        "2026-12-24T12:00:00Z\n",
        "２０２６-12-24T12:00:00Z",
        "1969-12-31T23:59:59Z",
        "2201-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
        "0001-01-01T00:00:00+14:00",
        "2" * 100_000,
        None,
        True,
        12.5,
        ["2026-12-24T12:00:00Z"],
        datetime(2026, 12, 24, 12),
    ],
)
def test_what_is_no_instant_is_refused(given: object) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        parse_trigger({"type": "once", "at": given})
    assert caught.value.field == "trigger.at"
    assert len(str(caught.value)) < 400
