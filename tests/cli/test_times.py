"""Instants and durations as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from horarium.cli.output import duration, is_utc, local, relative, universal

NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0.4 s"), (3, "3 s"), (59.6, "60 s"), (89, "89 s"), (90, "2 min"), (180, "3 min"), (5_399, "90 min"),
        (5_400, "2 h"), (86_400 * 2 - 1, "48 h"), (86_400 * 2, "2 d"), (86_400 * 365, "365 d"), (86_400 * 800, "2 y"),
    ],
)  # fmt: skip
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("offset", "text"),
    [(0, "now"), (-0.9, "now"), (180, "in 3 min"), (-180, "3 min ago"), (7_200, "in 2 h"), (-2, "2 s ago")],
)
def test_an_instant_is_so_far_off(offset: float, text: str) -> None:
    assert relative(NOW + timedelta(seconds=offset), NOW) == text


def test_the_wall_time_is_short_and_unambiguous() -> None:
    assert local(NOW, NOW, BERLIN) == "22 Nov 15:30"
    assert local(NOW + timedelta(seconds=5), NOW, BERLIN) == "22 Nov 15:30:05"
    assert local(datetime(2027, 1, 1, tzinfo=UTC), NOW, BERLIN) == "1 Jan 2027 01:00"
    assert universal(datetime(2026, 11, 22, 4, tzinfo=BERLIN)) == "03:00Z"


def test_one_column_is_enough_where_the_zone_is_utc() -> None:
    assert is_utc(NOW, UTC)
    assert not is_utc(NOW, BERLIN)
