"""A batch finishes exactly once, also where a node that fills it, or counts its ends, dies at any call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horarium.clock import DAY, SECOND
from horarium.errors import Conflict, Outage, StateConflict
from horarium.model import Failed, Run, State, Succeeded
from horarium.model.batches import BATCH, BATCH_ENDS, BATCH_RUNS, Batch, BatchFollow, BatchOccasion, BatchOn
from horarium.model.records import Record, RecordFilter
from horarium.operations.facade import Operations
from horarium.operations.settling.batching import Batching
from horarium.operations.settling.settling import Settlement
from horarium.ports import RunFilter, Store
from horarium.services.alerts.joins import BatchCounter
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.faults import Fault, FaultyStore
from horarium.wire.one_offs import read_run

ON: BatchOn = {
    occasion: (BatchFollow(handler=occasion.value), BatchFollow(trigger="next")) for occasion in BatchOccasion
}
ROW = {"target": {"type": "queue", "queue": "rows"}, "retry": {"attempts_max": 1}}
ROWS = "pull/rows"


class World:
    """A store, a clock, and operations on them; also by way of a store that fails."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(1_767_571_200 * SECOND), MemoryStore()
        self._numbers = count(1)
        self.operations = self.on(self.store)

    def on(self, store: Store) -> Operations:
        def entropy(size: int) -> bytes:
            return (next(self._numbers) << 24).to_bytes(size, "big") if size > 4 else bytes(size)

        return Operations(store, self.clock, LocalSignal(), entropy, lambda target: None)

    async def rows(self, number: int, **fields: Any) -> list[Run]:
        return await self.operations.one_offs.prepared([read_run({**ROW, **fields})] * number, [None] * number)

    async def claim(self, number: int = 1_000) -> list[Run]:
        now = self.clock.now()
        found = await self.store.claim_runs([ROWS], number, "w", now, now, self.clock.steady())
        return list(found.runs)

    async def end(self, run: Run, failed: bool = False, by: Operations | None = None) -> None:
        outcome = Failed("no") if failed else Succeeded()
        await (by or self.operations).settling.settle_one(Settlement(run.id, run.token, outcome))

    async def count(self, by: Operations | None = None) -> None:
        on = by or self.operations
        counter = BatchCounter(on.store, on.runs.batching, on.batches)
        while await counter.step(self.clock.now()) is not None:
            pass

    async def follow_ups(self) -> Counter[str]:
        """How often each handler was asked for, and the job."""
        page = await self.store.list_runs(RunFilter(), None, 200)
        return Counter(run.queue.removeprefix("handler/") for run in page.items if run.queue != ROWS)


def told(batch: Batch) -> tuple[int, int, int, int]:
    return batch.total, batch.completed, batch.failed, batch.cancelled


async def test_what_follows_gets_the_counts_and_follows_once() -> None:
    world = World()
    batch, _ = await world.operations.batches.create("import", ON, await world.rows(3), open=True)
    first, second, third = await world.claim()
    await world.end(first)
    await world.end(second, failed=True)
    await world.count()
    assert await world.follow_ups() == {"failed": 1, "follow": 1}
    await world.end(third)
    await world.count()
    assert await world.follow_ups() == {"failed": 1, "follow": 1}, "it is open"
    closed = await world.operations.batches.close(batch.id)
    assert (closed.state, told(closed)) == ("finished", (3, 2, 1, 0))
    assert await world.follow_ups() == {"failed": 1, "finished": 1, "follow": 2}
    (run,) = (await world.store.list_runs(RunFilter(queue="handler/finished"), None, 9)).items
    counts = {"batch": batch.id, "total": 3, "completed": 2, "failed": 1, "cancelled": 0}
    assert msgspec.json.decode(run.payload or b"") == counts
    on: BatchOn = {BatchOccasion.FINISHED: (BatchFollow(handler="given", payload="result"),)}
    empty, _ = await world.operations.batches.create(None, on)
    (run,) = (await world.store.list_runs(RunFilter(queue="handler/given"), None, 9)).items
    assert msgspec.json.decode(run.payload or b"")["batch"] == empty.id, "the result of a batch is its counts"
    await world.count()
    assert (await world.operations.batches.close(batch.id)).finished_at == closed.finished_at
    assert await world.follow_ups() == {"failed": 1, "finished": 1, "follow": 2, "given": 1}


async def test_a_closed_batch_takes_no_run_and_an_empty_one_is_complete() -> None:
    world = World()
    batch, _ = await world.operations.batches.create(None, ON, open=True)
    done = await world.operations.batches.close(batch.id)
    assert (done.state, await world.follow_ups()) == ("finished", {"completed": 1, "finished": 1, "follow": 2})
    with pytest.raises(StateConflict):
        await world.operations.batches.add(batch.id, await world.rows(1))
    assert (await world.store.list_runs(RunFilter(queue=ROWS), None, 9)).items == ()


async def test_a_run_whose_key_is_held_stays_outside() -> None:
    world = World()
    batch, (first,) = await world.operations.batches.create(None, {}, await world.rows(1, unique_key="k"), open=True)
    again = [*await world.rows(1, unique_key="k"), *await world.rows(1, unique_key="l")]
    batch, added = await world.operations.batches.add(batch.id, again)
    assert (batch.total, [run.id for run in added]) == (2, [first.id, again[1].id])
    page = await world.operations.batches.runs(batch.id, None, 1)
    assert ([run.id for run in page.items], page.next_after) == ([first.id], "1")
    rest = await world.operations.batches.runs(batch.id, "1", 9)
    assert [run.id for run in rest.items] == [again[1].id]


async def test_two_runs_with_one_key_are_refused_together() -> None:
    world = World()
    with pytest.raises(Conflict, match="unique_key: two of these runs have the same"):
        await world.operations.batches.create(None, {}, await world.rows(2, unique_key="k"))
    assert (await world.store.list_runs(RunFilter(queue=ROWS), None, 9)).items == ()


async def test_failed_runs_done_again_open_the_batch_again() -> None:
    world = World()
    batch, _ = await world.operations.batches.create(None, ON, await world.rows(3))
    for number, run in enumerate(await world.claim()):
        await world.end(run, failed=number > 0)
    await world.count()
    assert (await world.operations.batches.get(batch.id)).state == "finished"
    world.clock.advance(1)
    again = await world.operations.batches.retry(batch.id)
    assert (again.state, told(again)) == ("closed", (3, 1, 0, 0))
    assert (await world.operations.batches.retry(batch.id)).failed == 0, "there is nothing to do again"
    for run in await world.claim():
        await world.end(run)
    await world.count()
    done = await world.operations.batches.get(batch.id)
    assert (done.state, told(done)) == ("finished", (3, 3, 0, 0))
    assert await world.follow_ups() == {"failed": 1, "completed": 1, "finished": 2, "follow": 4}
    members = (await world.operations.batches.runs(batch.id, None, 9)).items
    assert {run.state for run in members} == {State.COMPLETED}


async def test_a_run_that_is_retried_by_itself_takes_its_place_once() -> None:
    world = World()
    batch, _ = await world.operations.batches.create(None, ON, await world.rows(1))
    (run,) = await world.claim()
    await world.end(run, failed=True)
    world.clock.advance(1)
    again = await world.operations.runs.retry_run(run.id)
    with pytest.raises(StateConflict):
        await world.operations.runs.retry_run(run.id)
    await world.count()
    assert told(await world.operations.batches.get(batch.id)) == (1, 0, 0, 0)
    assert [each.id for each in (await world.operations.batches.runs(batch.id, None, 9)).items] == [again.id]


async def test_a_cancelled_batch_finishes_once_its_running_runs_have_stopped() -> None:
    world = World()
    batch, _ = await world.operations.batches.create(None, ON, await world.rows(3), open=True)
    (running,) = await world.claim(1)
    after = await world.operations.batches.cancel(batch.id, "mistaken")
    assert (after.state, told(after)) == ("closed", (3, 0, 0, 2))
    await world.end(running)
    await world.count()
    done = await world.operations.batches.get(batch.id)
    assert (done.state, told(done)) == ("finished", (3, 1, 0, 2)) or told(done) == (3, 0, 0, 3)
    assert (await world.follow_ups())["finished"] == 1


async def paged(world: World, pages: int, number: int, **fields: Any) -> Batch:
    """A closed batch, whose runs lie in pages of this number."""
    batch, _ = await world.operations.batches.create(None, ON, open=True)
    for _ in range(pages):
        await world.operations.batches.add(batch.id, await world.rows(number, **fields))
    return await world.operations.batches.close(batch.id)


async def test_what_concerns_a_large_batch_is_carried_out_page_by_page() -> None:
    world = World()
    batch = await paged(world, 3, 2)
    await world.end((await world.claim(1))[0], failed=True)
    asked = await world.operations.batches.cancel(batch.id, "mistaken")
    assert (asked.state, told(asked)) == ("closed", (6, 0, 1, 1)), "the request did one page"
    with pytest.raises(StateConflict, match="cancel is still being carried out"):
        await world.operations.batches.retry(batch.id)
    await world.count()
    done = await world.operations.batches.get(batch.id)
    assert (done.state, told(done)) == ("finished", (6, 0, 1, 5))
    assert (await world.follow_ups())["finished"] == 1
    assert not (await world.store.list_records(RecordFilter(BATCH_ENDS), None, 9)).items


async def test_a_large_batch_that_is_done_again_finishes_once_more() -> None:
    world = World()
    batch = await paged(world, 3, 2)
    for run in await world.claim():
        await world.end(run, failed=True)
    await world.count()
    assert (await world.follow_ups())["finished"] == 1
    again = await world.operations.batches.retry(batch.id)
    assert (again.state, told(again)) == ("closed", (6, 0, 4, 0)), "the request did one page"
    counting = Batching(world.operations.context)
    for run in await world.claim():
        await world.end(run)
    await counting.count(batch.id)
    between = await world.operations.batches.get(batch.id)
    assert (between.state, told(between)) == ("closed", (6, 2, 4, 0)), "not finished before all are done again"
    await world.count()
    for run in await world.claim():
        await world.end(run)
    await world.count()
    done = await world.operations.batches.get(batch.id)
    assert (done.state, told(done)) == ("finished", (6, 6, 0, 0))
    assert (await world.follow_ups())["finished"] == 2
    assert (await world.operations.batches.retry(batch.id)).state == "finished", "nothing failed"


async def test_runs_that_were_done_again_and_failed_once_more_are_not_done_again_by_the_same_request() -> None:
    """The request did the first page; what is owed begins with it too, since the request might have died."""
    world = World()
    batch = await paged(world, 2, 2)
    for run in await world.claim():
        await world.end(run, failed=True)
    await world.operations.batches.retry(batch.id)
    for run in await world.claim():
        await world.end(run, failed=True)
    await world.count()
    waiting = await world.claim()
    assert len(waiting) == 2, "those of the second page"
    for run in waiting:
        await world.end(run, failed=True)
    await world.count()
    assert told(await world.operations.batches.get(batch.id)) == (4, 0, 4, 0)
    world.clock.advance(1)
    await world.operations.batches.retry(batch.id)
    await world.count()
    assert len(await world.claim()) == 4, "a further request does them all"


async def test_two_requests_with_one_key_make_one_batch() -> None:
    """The second one comes before the first is written."""
    world = World()
    first = await world.operations.batches.create("rows", {}, await world.rows(2), open=True, key="k")
    unseen = FaultyStore(world.store, lambda call: None)
    asked = 0

    async def get_records(names: Any) -> Any:
        nonlocal asked
        asked += 1
        return [None] if asked == 1 else await world.store.get_records(names)

    unseen.get_records = get_records  # type: ignore[method-assign]
    again, _ = await world.on(unseen).batches.create("rows", {}, await world.rows(2), open=True, key="k")
    assert (again.id, again.total) == (first[0].id, 2)


@pytest.mark.parametrize("pages", [1, 3])
async def test_a_batch_whose_failed_runs_are_kept_no_longer_is_not_done_again(pages: int) -> None:
    world = World()
    batch = await paged(world, pages, 2, retention={"finished_seconds": 1})
    for run in await world.claim():
        await world.end(run, failed=True)
    await world.count()
    world.clock.advance(2)
    assert await world.store.prune_runs(world.clock.now(), 10) == 2 * pages
    before = await world.operations.batches.get(batch.id)
    with pytest.raises(StateConflict, match="kept no longer"):
        await world.operations.batches.retry(batch.id)
    await world.count()
    assert await world.operations.batches.get(batch.id) == before
    assert (await world.follow_ups())["finished"] == 1


async def test_runs_and_batches_are_forgotten_in_any_order() -> None:
    world = World()
    gone = {"retention": {"finished_seconds": 1}}
    batch, _ = await world.operations.batches.create(None, ON, await world.rows(2, **gone), key="request")
    for run in await world.claim():
        await world.end(run)
    world.clock.advance(2)
    assert await world.store.prune_runs(world.clock.now(), 10) == 2
    await world.count()
    done = await world.operations.batches.get(batch.id)
    assert (done.state, told(done)) == ("finished", (2, 2, 0, 0)), "the counts outlive the runs"
    assert (await world.operations.batches.create(None, ON, key="request"))[0].id == batch.id
    assert await world.operations.batches.prune(world.clock.now(), None) is None
    assert await world.operations.batches.get(batch.id)
    world.clock.advance(8 * DAY // SECOND)
    await world.operations.batches.prune(world.clock.now(), None)
    for prefix in (BATCH, BATCH_RUNS, BATCH_ENDS, "batch-key/"):
        assert not (await world.store.list_records(RecordFilter(prefix), None, 9)).items


async def test_a_batch_that_is_done_again_while_it_is_forgotten_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    batch, _ = await world.operations.batches.create(None, ON, await world.rows(1), open=True)
    _, (last,) = await world.operations.batches.add(batch.id, await world.rows(1))
    await world.operations.batches.close(batch.id)
    for run in await world.claim():
        await world.end(run, failed=run.id == last.id)
    await world.count()
    world.clock.advance(8 * DAY // SECOND)
    honest, raced = world.store.get_records, False

    async def read(names: Sequence[str]) -> list[Record | None]:
        nonlocal raced
        found, begins = await honest(names), not raced and names[0].startswith(BATCH_RUNS)
        if begins:
            raced = True
            await world.operations.runs.retry_run(last.id)
        return found

    monkeypatch.setattr(world.store, "get_records", read)
    await world.operations.batches.prune(world.clock.now(), None)
    assert raced
    assert len((await world.operations.batches.runs(batch.id, None, 9)).items) == 2


@pytest.mark.parametrize("when", list(Fault))
async def test_whoever_dies_at_any_call_it_finishes_exactly_once(when: Fault) -> None:
    """A producer, a worker and a counter die; others come after them, and do the same."""
    for last_call in range(1, 200):
        world, calls, died = World(), 0, False

        def dies(call: str, last_call: int = last_call) -> Fault | None:
            nonlocal calls, died
            calls += 1
            died = died or calls >= last_call
            return when if calls >= last_call else None

        dying = world.on(FaultyStore(world.store, dies))
        batch, _ = await world.operations.batches.create(None, ON, open=True)
        keyed = [await world.rows(1, unique_key=f"row-{number}") for number in range(4)]
        for by in (dying, world.operations):
            try:
                for rows in (keyed[:2], keyed[2:]):
                    for row in rows:
                        await by.batches.add(batch.id, row)
                    for run in await world.claim():
                        await world.end(run, by=by)
                    await world.count(by)
                await by.batches.close(batch.id)
            except (Outage, StateConflict):
                pass
        for run in (await world.store.list_runs(RunFilter(states=frozenset({State.RUNNING})), None, 9)).items:
            await world.end(run)
        await world.count()
        done = await world.operations.batches.get(batch.id)
        assert (done.state, told(done)) == ("finished", (done.total, done.total, 0, 0)), f"call {last_call}"
        stored = (await world.store.list_runs(RunFilter(queue=ROWS), None, 9)).items
        assert len(stored) == done.total
        assert await world.follow_ups() == {"completed": 1, "finished": 1, "follow": 2}, f"call {last_call}"
        assert not (await world.store.list_records(RecordFilter(BATCH_ENDS), None, 9)).items
        if not died:
            return
    raise AssertionError("it takes more calls than were tried")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.booleans()),
        st.sampled_from([("count", 0), ("close", 0), ("cancel", 0), ("retry", 0), ("crash", 0), ("crash", 1)]),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
async def test_counts_are_those_of_the_runs_whatever_happens(steps: list[tuple[str, int]]) -> None:
    world = World()
    crash: list[Fault] = []
    failing = world.on(FaultyStore(world.store, lambda call: crash.pop() if crash and "list" not in call else None))
    batch, _ = await world.operations.batches.create(None, ON, open=True)
    claimed: list[Run] = []
    for what, number in steps:
        world.clock.advance(1)
        try:
            match what:
                case "add":
                    await failing.batches.add(batch.id, await world.rows(number))
                case "end":
                    claimed = claimed or await world.claim()
                    if claimed:
                        await world.end(claimed[0], bool(number), failing)
                        claimed.pop(0)
                case "count":
                    await world.count(failing)
                case "crash":
                    crash.append(list(Fault)[number])
                case _:
                    await getattr(failing.batches, what)(batch.id)
        except (Outage, StateConflict):
            continue
    crash.clear()
    await world.operations.batches.close(batch.id)
    await world.count()
    while runs := (await world.claim()) or claimed:
        claimed = []
        for run in runs:
            await world.end(run) if (await world.operations.runs.get_run(run.id)).state is State.RUNNING else None
    for run in (await world.store.list_runs(RunFilter(queue=ROWS), None, 200)).items:
        if not run.finished:
            await world.end(run)
    await world.count()
    done = await world.operations.batches.get(batch.id)
    members = (await world.operations.batches.runs(batch.id, None, 200)).items
    ends = Counter(run.state for run in members)
    assert done.state == "finished"
    assert told(done) == (len(members), ends[State.COMPLETED], ends[State.FAILED], ends[State.CANCELLED])
    assert (await world.follow_ups())["finished"] == done.round
