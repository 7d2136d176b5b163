"""A queue over time: how many waited and were held at each minute, and what is not known of that."""

from __future__ import annotations

import re

import pytest

from horarium.clock import MINUTE, SECOND, Instant
from horarium.dashboard import attention
from horarium.dashboard.backlog import Moment, backlog, bars_of, longest_wait, moments_of
from horarium.dashboard.views import queue as views_queue
from horarium.model import Event, EventKind, Run, State, uuid7
from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow
START = 1_800_000_000 * SECOND
STARTS = range(START, START + 10 * MINUTE, MINUTE)
NOW = START + 9 * MINUTE + 30 * SECOND


def a_run(due: Instant, state: State, history: tuple[Event, ...] = (), finished_at: Instant | None = None) -> Run:
    return Run(
        id=uuid7(due, b"0123456789"), queue="pull/q", job=None, job_id=None, fire_at=due, due_at=due, created_at=due,
        state=state, attempt=len(history) // 2, history=history, finished_at=finished_at,
        started_at=history[0].at if history else None,
    )  # fmt: skip


def at(minute: float, state: State, kind: EventKind | None = None) -> Event:
    return Event(at=START + round(minute * MINUTE), state=state, message="", kind=kind)


def test_each_minute_counts_who_waits_and_who_is_held() -> None:
    ended = a_run(START, State.COMPLETED, (at(2.5, State.RUNNING), at(4.5, State.COMPLETED)), START + 9 * MINUTE // 2)
    again = a_run(START, State.FAILED, (at(1.5, State.RUNNING), at(2.5, State.PENDING, EventKind.FAILED),
                  at(6.5, State.RUNNING), at(7.5, State.FAILED)), START + 15 * MINUTE // 2)  # fmt: skip
    waits, goes = a_run(START + 3 * MINUTE, State.PENDING), a_run(START, State.RUNNING, (at(8.5, State.RUNNING),))
    moments = moments_of([ended, again, waits, goes], STARTS, NOW)
    assert [each.waiting for each in moments] == [3, 2, 1, 2, 2, 2, 2, 2, 1, 1]
    assert [each.held for each in moments] == [0, 1, 1, 1, 0, 0, 1, 0, 1, 1]
    assert [each.oldest for each in moments] == [START] * 8 + [START + 3 * MINUTE] * 2
    assert longest_wait([ended, again, waits, goes], START + 4 * MINUTE, NOW) == 17 * MINUTE // 2
    assert longest_wait([ended], START + 4 * MINUTE, NOW) is None
    bars = bars_of([ended, again, waits, goes], STARTS, START)
    assert [(bar.ok, bar.failed) for bar in bars if bar.total] == [(1, 0), (0, 1)]


def test_before_the_oldest_run_that_was_read_nothing_is_drawn() -> None:
    moments = [Moment(start + MINUTE, 4, 2, START) for start in STARTS]
    known = START + 5 * MINUTE
    bars = bars_of([a_run(START, State.COMPLETED, finished_at=START + MINUTE)], STARTS, known)
    assert sum(bar.total for bar in bars) == 0
    drawn = backlog(moments, bars, known, "UTC", NOW)
    assert (drawn.known_x, len(drawn.waiting.split())) == (40.0, 6)
    words = drawn.spoken.words.splitlines()
    assert words[0].endswith("not known")
    assert words[-1].endswith("4 waiting, the oldest for 10 m, 2 held")


async def test_the_page_of_a_queue_draws_its_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(pages=True)
    visitor = Visitor(api)
    await api.add_job("poll")
    for _ in range(3):
        await api.post("/jobs/poll/trigger")
    api.clock.advance(120)
    (run,) = await api.claim()
    await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
    api.clock.advance(60)
    await visitor.open("/queue?name=work")
    assert "1 run completed 0 failed" in visitor.text
    assert "Waiting now: 2, held: 0" in visitor.page
    spoken = [line for found in re.findall(r'data-words="([^"]*)"', visitor.page) for line in found.splitlines()]
    assert any(re.search(r": 3 waiting, the oldest for [\dms ]+, 0 held$", line) for line in spoken), spoken
    assert "not known: there are more runs" not in visitor.text
    monkeypatch.setattr(views_queue, "READ_MAX", 1)
    monkeypatch.setattr(attention, "PAGE_MAX", 1)
    await visitor.open("/queue?name=work")
    assert "not known: there are more runs than are read" in visitor.text
    assert " 1 run completed 0 failed" in visitor.text, "those that wait do not hide what ended"
    assert "At least" not in visitor.text
    monkeypatch.setattr(views_queue, "PAGE_MAX", 1)
    await visitor.open("/queue?name=work")
    assert "At least 1 run completed" in visitor.text, "there may be more that ended"
