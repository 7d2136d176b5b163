"""Starts of very many jobs take little room."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from horarium.clock import DAY, HOUR, MINUTE, SECOND
from horarium.model import Job
from horarium.operations.looking.starts import BUSIEST_MAX, StartCounts
from horarium.rules.forecasting import Span
from horarium.testing.values import a_job

from .test_forecasting import SPRING


@pytest.mark.slow
def test_jobs_take_a_few_bytes_each_but_for_the_busiest() -> None:
    """Where each has an instant, a jitter and a label of its own, and where they are told by name."""
    daily = [{"type": "cron", "expression": "7 3 * * *"}, {"type": "interval", "every_seconds": 86_400}]

    def jobs(first: int) -> list[Job]:
        return [
            a_job(f"job-{number}", trigger=daily[number % 2], anchor_at=SPRING - number * SECOND, planned_until=SPRING,
                  jitter_seconds=number % 3 * 600.0)
            for number in range(first, first + 500)
        ]  # fmt: skip

    counts = StartCounts(Span(SPRING, SPRING + 7 * DAY, MINUTE), by="job")
    for first in range(0, 2 * BUSIEST_MAX, 500):
        counts.weigh(jobs(first))
    tracemalloc.start()
    for first in range(1_000, 6_000, 500):
        counts.weigh(jobs(first))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(counts.busiest) == BUSIEST_MAX
    assert taken < 5_000 * 200


def test_intervals_of_their_own_begin_take_no_room() -> None:
    span = Span(SPRING, SPRING + 300 * DAY, HOUR)
    counts = StartCounts(span, by="host")
    jobs = [
        a_job(f"job-{number}", trigger={"type": "interval", "every_seconds": 9_000}, anchor_at=SPRING + number * SECOND,
              planned_until=SPRING)
        for number in range(300)
    ]  # fmt: skip
    counts.weigh(jobs)
    assert counts.patterns.kept == 0
    assert sum(counts.total(job.key for job in counts.busiest)) == sum(counts.sizes) == 300 * 2_879


def test_jobs_for_which_chance_chose_one_time_have_one_pattern() -> None:
    counts = StartCounts(Span(SPRING, SPRING + 7 * DAY, HOUR), by="host")
    hourly = {"type": "cron", "expression": "H * * * *", "timezone": "Europe/Berlin"}
    counts.weigh([a_job(f"job-{number}", trigger=hourly, planned_until=SPRING) for number in range(400)])
    assert len(counts.busiest) == 400
    assert len(counts.patterns.all) <= 60
    assert sum(counts.total(job.key for job in counts.busiest)) == 400 * 7 * 24


def test_jobs_whose_patterns_have_no_room_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.operations.looking.starts.KEPT_MAX", 20)
    counts = StartCounts(Span(SPRING, SPRING + 7 * DAY, HOUR), by="host")
    jobs = [
        a_job(f"job-{number}", trigger={"type": "cron", "expression": f"{number} 3 * * *"}, planned_until=SPRING)
        for number in range(4)
    ]
    counts.weigh(jobs)
    assert [job.name for job in counts.busiest] == ["job-0", "job-1"]
    assert counts.left_out == ["job-2", "job-3"]


def test_a_rule_that_costs_too_much_is_tried_once_for_all_jobs_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module, tried = sys.modules[StartCounts.__module__], list[Any]()
    honest = module.listed

    def noted(lists: Any) -> Any:
        tried.append(lists)
        return honest(lists)

    monkeypatch.setattr(module, "listed", noted)
    counts = StartCounts(Span(SPRING, SPRING + 36_500 * DAY, 31 * DAY))
    minutely = {"type": "cron", "expression": "* * * * *", "timezone": "Europe/Berlin"}
    counts.weigh([a_job(f"job-{number}", trigger=minutely, planned_until=SPRING) for number in range(40)])
    assert (len(counts.left_out), len(tried)) == (40, 1)


def test_jobs_are_looked_at_no_further_once_no_one_waits() -> None:
    counts = StartCounts(Span(SPRING, SPRING + DAY, HOUR))
    hourly = {"type": "cron", "expression": "0 * * * *"}

    def jobs() -> Iterator[Job]:
        for number in range(10):
            counts.over = number > 3
            yield a_job(f"job-{number}", trigger=hourly, planned_until=SPRING)

    counts.weigh(jobs())
    assert sum(*counts.totals([""])) == 4 * 24
