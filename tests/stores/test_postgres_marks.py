"""Low-water marks: claims step over no more dead entries than a second leaves, and nothing waits longer than that."""

from __future__ import annotations

import pytest

from horarium.clock import SECOND
from horarium.stores.postgres import PostgresStore, marks
from horarium.stores.postgres.marks import LOOK_SECONDS, NO_MARKS, SLACK, LowWaterMarks
from horarium.stores.postgres.rows import QUEUE_COLUMN
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, QUEUE, a_run
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import new_database

pytestmark = pytest.mark.slow


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_row(queue: int, priority: int, due_at: int) -> tuple[int, ...]:
    row = [0] * 20
    row[QUEUE_COLUMN], row[marks.PRIORITY_COLUMN], row[marks.DUE_COLUMN] = queue, priority, due_at
    return tuple(row)


def test_a_quick_look_leaves_no_marks() -> None:
    known = LowWaterMarks(Time())
    known.looked([a_row(1, 0, NOW)], marks.SLOW_SECONDS / 2)
    assert known.of({"q"}, {1: "q"}) is NO_MARKS


def test_a_slow_one_leaves_one_for_each_level_until_it_is_time_to_look_again() -> None:
    time = Time()
    known = LowWaterMarks(time)
    known.looked([a_row(1, 0, NOW + 5), a_row(1, 0, NOW), a_row(2, 7, NOW + 9)], marks.SLOW_SECONDS)
    names = {1: "q", 2: "r"}
    assert known.of({"q"}, names) == ([1], [0], [NOW - SLACK])
    assert known.of({"q", "r"}, names) == ([1, 2], [0, 7], [NOW - SLACK, NOW + 9 - SLACK])
    assert known.of({"other"}, names) is NO_MARKS
    time.now = LOOK_SECONDS
    assert known.of({"q"}, names) is NO_MARKS


def test_looks_of_other_queues_put_the_next_look_at_all_off_for_no_one() -> None:
    time = Time()
    known = LowWaterMarks(time)
    known.looked([a_row(1, 0, NOW)], marks.SLOW_SECONDS)
    time.now = 0.9 * LOOK_SECONDS
    known.looked([], marks.SLOW_SECONDS)
    known.looked([a_row(2, 0, NOW)], marks.SLOW_SECONDS)
    time.now = LOOK_SECONDS
    assert known.of({"q", "r"}, {1: "q", 2: "r"}) is NO_MARKS


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


async def test_a_run_from_before_a_mark_is_claimed_by_the_next_look_at_all(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "SLOW_SECONDS", 0.0)
    time = Time()
    store = PostgresStore(url)
    store._memory.marks = LowWaterMarks(time)
    await store.open()
    await store.add_runs([a_run(n, due_at=NOW) for n in range(10)])
    assert len((await take(store, 5)).runs) == 5
    early, other = a_run(20, due_at=NOW - 9 * SECOND), a_run(21, due_at=NOW, priority=3)
    within = a_run(22, due_at=NOW - SECOND)
    await store.add_runs([early, other, within])
    assert [run.id for run in (await take(store, 2, queues=[QUEUE])).runs] == [other.id, within.id]
    assert len((await take(store, 5)).runs) == 5
    nothing = await take(store, 5)
    assert (nothing.runs, nothing.next_due_at) == ((), NOW + round(LOOK_SECONDS * SECOND)), (
        "when all is looked at again"
    )
    time.now = LOOK_SECONDS
    assert (await take(store, 1)).runs[0].id == early.id
    await store.close()
