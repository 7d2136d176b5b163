"""Warnings that may come in thousands."""

from __future__ import annotations

import logging

import pytest

from horarium.clock import SECOND
from horarium.services.loop.quiet import LINES_PER_SECOND_MAX, QuietLog


def test_a_thousand_warnings_in_a_second_are_a_few_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog("lost runs")
    with caplog.at_level(logging.WARNING, "horarium"):
        for number in range(1_000):
            quiet.write(5 * SECOND + number, "run %d is lost", number)
        assert [record.getMessage() for record in caplog.records] == ["run 0 is lost", "run 1 is lost", "run 2 is lost"]
        caplog.clear()
        quiet.tell_rest(6 * SECOND)
        quiet.tell_rest(6 * SECOND)
    assert [record.getMessage() for record in caplog.records] == [
        f"lost runs: {1_000 - LINES_PER_SECOND_MAX} more like these"
    ]


def test_every_second_has_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog("lost runs")
    with caplog.at_level(logging.WARNING, "horarium"):
        for second in range(10):
            quiet.write(second * SECOND, "run %d is lost", second)
    assert len(caplog.records) == 10
