"""A join fires exactly once in each window in which all have come, also where whoever writes it dies at any call."""

from __future__ import annotations

import os
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_datetime
from horarium.errors import Conflict, InvalidRequest, InvalidTrigger, Outage
from horarium.model import Disposition, Failed, Job, Run, State, Succeeded
from horarium.model.records import RecordFilter
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.ports import RunFilter, Store
from horarium.rules.joins import JOIN_ENDS, JOIN_LOOKS, JOINED, JOINS, KEPT, fire_of
from horarium.services.alerts.joins import Joiner
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.faults import Fault, FaultyStore
from horarium.wire.definitions import read_definition

START = 1_767_571_200 * SECOND
"""A Monday, at midnight."""
NEVER = {"type": "once", "at": "2100-01-01T00:00:00Z"}
AFTER = {"type": "after", "jobs": ["a", "b"], "within": "day"}


class World:
    """A store, a clock, operations and services; also by way of a store that fails. It is 10:00."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(START + 10 * HOUR), MemoryStore()
        self._numbers = count(1)
        self.operations = self.on(self.store)

    def on(self, store: Store) -> Operations:
        return Operations(store, self.clock, LocalSignal(), os.urandom, lambda target: None)

    async def define(self, name: str, trigger: dict[str, Any], by: Operations | None = None, **fields: Any) -> Job:
        target = {"type": "queue", "queue": "load" if trigger["type"] == "after" else "extract"}
        definition = {"name": name, "trigger": trigger, "target": target, "retry": {"attempts_max": 1}, **fields}
        return (await (by or self.operations).jobs.put_job(read_definition(definition)))[0]

    async def extracts(self) -> None:
        for name in ("a", "b"):
            await self.define(name, NEVER)

    async def run(self, name: str, outcome: Any = None, by: Operations | None = None) -> Run:
        """A run of this job, that ends at once."""
        run = await (by or self.operations).jobs.trigger_job(name)
        await self.end(run, outcome, by)
        return run

    async def end(self, run: Run, outcome: Any = None, by: Operations | None = None) -> None:
        now = self.clock.now()
        found = await self.store.claim_runs([run.queue], 99, "w", now, now, self.clock.steady())
        for each in found.runs:
            settlement = Settlement(each.id, each.token, outcome or Succeeded())
            await (by or self.operations).settling.settle_one(settlement)

    async def join(self, by: Operations | None = None) -> None:
        """What services do until there is nothing left to do now."""
        operations = by or self.operations
        joiner = Joiner(operations.reconciler.joining)
        planner = Planner(
            operations.store, LocalSignal(), operations.reconciler, operations.following, Telemetry(), ahead_seconds=0
        )
        for _ in range(200):
            wake = await joiner.step(self.clock.now())
            await planner.step(self.clock.now())
            if wake is None or wake > self.clock.now():
                return
        raise AssertionError("it never comes to rest")

    async def rows(self, name: str = "load") -> list[Run]:
        """Ascending by fire time."""
        return list((await self.store.list_runs(RunFilter(job=name), None, 200)).items)[::-1]

    async def fired(self, name: str = "load") -> list[Instant]:
        return [row.fire_at - START for row in await self.rows(name) if row.state is not State.SKIPPED]

    async def records(self, prefix: str) -> int:
        return len((await self.store.list_records(RecordFilter(prefix), None, 200)).items)


async def a_world(trigger: dict[str, Any] = AFTER, **fields: Any) -> World:
    world = World()
    await world.extracts()
    await world.define("load", trigger, **fields)
    await world.join()
    return world


async def test_it_fires_once_for_each_window_in_which_all_came() -> None:
    world = await a_world()
    await world.run("a")
    await world.join()
    assert await world.fired() == []
    await world.run("b", Failed("no", retryable=False))
    await world.join()
    assert await world.fired() == [], "a run that failed does not count"
    await world.run("b")
    await world.join()
    assert await world.fired() == [0]
    for name in ("a", "b", "a"):
        await world.run(name)
    await world.join()
    assert await world.fired() == [0], "the window has had its run"
    world.clock.advance(DAY // SECOND)
    await world.run("b")
    await world.join()
    assert await world.fired() == [0]
    await world.run("a")
    await world.join()
    assert await world.fired() == [0, DAY]
    (first, _) = await world.rows()
    assert first.due_at == START + 10 * HOUR
    assert "a completed at 2026-01-05T10:00:00Z; b completed at" in first.history[0].message
    assert await world.records(JOIN_ENDS) == 0


async def test_any_end_counts_where_it_says_finished() -> None:
    world = await a_world({**AFTER, "outcome": "finished"})
    await world.run("a", Failed("no", retryable=False))
    run = await world.operations.jobs.trigger_job("b")
    await world.operations.runs.cancel_run(run.id)
    await world.join()
    assert await world.fired() == [0]


async def test_a_retry_counts_in_the_window_of_the_run_that_it_repeats() -> None:
    world = await a_world()
    await world.run("a")
    failed = await world.run("b", Failed("no", retryable=False))
    world.clock.advance(DAY // SECOND)
    again = await world.operations.runs.retry_run(failed.id)
    assert fire_of(again) == failed.fire_at
    await world.end(again, Failed("no", retryable=False))
    await world.join()
    assert await world.fired() == []
    world.clock.advance(DAY // SECOND)
    third = await world.operations.runs.retry_run(again.id)
    await world.end(third)
    await world.join()
    assert await world.fired() == [0], "a retry of a retry too"


async def test_what_ended_before_every_node_knew_of_the_join_counts() -> None:
    world = World()
    await world.extracts()
    await world.run("a")
    world.clock.advance(4 * HOUR // SECOND)
    elsewhere = world.on(world.store)
    await elsewhere.reconciler.joining.members.look()
    await world.define("load", AFTER)
    await world.join()
    await world.run("b", by=elsewhere)
    assert await world.records(JOIN_ENDS) == 0, "that node has not heard of it"
    await world.join()
    assert await world.fired() == []
    world.clock.advance(13)
    await world.join()
    assert await world.fired() == [0]
    assert await world.records(JOIN_LOOKS) == 0


async def test_a_deadline_tells_who_is_missing_and_is_told_once() -> None:
    world = await a_world({**AFTER, "deadline_seconds": 11 * 3600}, on={"missed": [{"trigger": "other"}]})
    await world.run("a")
    world.clock.advance(HOUR // SECOND + 3)
    for _ in range(3):
        await world.join()
    (row,) = await world.rows()
    assert (row.state, row.disposition, row.fire_at) == (State.SKIPPED, Disposition.MISSED, START)
    assert row.error == "after: b has not completed; a completed at 2026-01-05T10:00:00Z"
    assert len((await world.store.list_runs(RunFilter(queue="follow"), None, 9)).items) == 1
    await world.run("b")
    await world.join()
    assert len(await world.rows()) == 1, "it comes too late"
    world.clock.advance(22 * HOUR // SECOND)
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    assert await world.fired() == [DAY]
    world.clock.advance(DAY // SECOND)
    await world.join()
    assert len(await world.rows()) == 2


async def test_an_end_before_the_deadline_counts_though_it_is_read_after_it() -> None:
    world = await a_world({**AFTER, "deadline_seconds": 11 * 3600})
    for name in ("a", "b"):
        await world.run(name)
    world.clock.advance(2 * HOUR // SECOND)
    await world.join()
    assert await world.fired() == [0]


async def test_windows_in_which_nobody_came_are_one_row() -> None:
    world = await a_world({**AFTER, "within": {"seconds": 600}, "deadline_seconds": 300})
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    world.clock.advance(2 * HOUR // SECOND)
    await world.run("a")
    world.clock.advance(600)
    await world.join()
    first, empty, half = await world.rows()
    assert (first.state, first.fire_at) == (State.PENDING, START + 10 * HOUR)
    assert (empty.fires, empty.fire_at) == (11, START + 10 * HOUR + 10 * MINUTE)
    assert (half.fires, half.fire_at, half.error) == (
        1, START + 12 * HOUR, "after: b has not completed; a completed at 2026-01-05T12:00:00Z",
    )  # fmt: skip
    assert empty.error == "after: a and b have not completed"


async def test_while_it_is_paused_a_window_is_skipped_and_a_limit_ends_it() -> None:
    world = await a_world(fires_max=1)
    await world.operations.jobs.pause_job("load", "audit")
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    (row,) = await world.rows()
    assert (row.disposition, row.error) == (Disposition.SKIPPED_PAUSED, "paused: audit")
    await world.operations.jobs.resume_job("load")
    for _ in range(3):
        world.clock.advance(DAY // SECOND)
        for name in ("a", "b"):
            await world.run(name)
        await world.join()
    assert await world.fired() == [DAY]


async def test_a_chain_of_joins_and_a_name_that_comes_later() -> None:
    world = await a_world()
    await world.define("report", {"type": "after", "jobs": ["load", "late"]})
    for name in ("a", "b"):
        await world.run(name)
    await world.join()
    (load,) = await world.rows()
    await world.end(load)
    world.clock.advance(20)
    await world.define("late", NEVER)
    await world.run("late")
    await world.join()
    assert await world.fired("report") == [0]


async def test_a_circle_is_refused_and_named() -> None:
    world = await a_world()
    await world.define("report", {"type": "after", "jobs": ["load"]})
    with pytest.raises(InvalidTrigger, match="a after report after load after a"):
        await world.define("a", {"type": "after", "jobs": ["report"]})
    with pytest.raises(InvalidTrigger, match="self after self"):
        await world.define("self", {"type": "after", "jobs": ["self"]})
    both = [
        read_definition({"name": one, "trigger": {"type": "after", "jobs": [other]}, "target": {"type": "external"}})
        for one, other in (("x", "y"), ("y", "x"))
    ]
    with pytest.raises(InvalidTrigger, match="x after y after x"):
        await world.operations.jobs.create_jobs(both)
    created, refused = await world.operations.importing.put_jobs(both)
    assert created == "created"
    assert "y after x after y" in str(refused)


async def test_its_fire_times_are_not_backfilled() -> None:
    world = await a_world()
    with pytest.raises(InvalidRequest, match="follows from runs of others"):
        await world.operations.jobs.backfill_job("load", to_datetime(START), to_datetime(START + DAY))


async def test_a_job_that_is_edited_or_deleted_follows_no_longer() -> None:
    world = await a_world()
    await world.run("a")
    await world.define("load", NEVER)
    await world.run("b")
    await world.join()
    assert (await world.rows(), await world.records(JOINS), await world.records(JOIN_ENDS)) == ([], 0, 0)
    await world.define("load", AFTER)
    await world.join()
    assert await world.fired() == [0]
    await world.operations.jobs.delete_job("load")
    world.clock.advance(13)
    await world.join()
    assert (await world.records(JOINS), await world.records(JOIN_LOOKS)) == (0, 0)
    world.clock.advance((KEPT + 2 * DAY) // SECOND)
    assert await world.operations.reconciler.joining.prune(world.clock.now(), 100) == 1
    assert await world.records(JOINED) == 0


@pytest.mark.parametrize("when", list(Fault))
async def test_whoever_dies_at_any_call_it_fires_exactly_once(when: Fault) -> None:
    """Who defines, who works and who joins die; others come after them, and do the same."""
    trigger = {**AFTER, "deadline_seconds": 11 * 3600}
    for last_call in range(1, 300):
        world, calls, died = World(), 0, False
        await world.extracts()

        def dies(call: str, last_call: int = last_call) -> Fault | None:
            nonlocal calls, died
            calls += 1
            died = died or calls >= last_call
            return when if calls >= last_call else None

        dying = world.on(FaultyStore(world.store, dies))
        for by in (dying, world.operations):
            try:
                await world.define("load", trigger, by)
                for name in ("a", "b"):
                    await world.run(name, by=by)
                    await world.join(by)
            except (Outage, Conflict):
                pass
        world.clock.advance(HOUR // SECOND + 30)
        await world.join()
        assert await world.fired() == [0], f"call {last_call}"
        world.clock.advance(DAY // SECOND)
        await world.run("a")
        await world.join()
        rows = [(row.state, row.fire_at - START) for row in await world.rows()]
        assert rows == [(State.PENDING, 0), (State.SKIPPED, DAY)], f"call {last_call}"
        assert await world.records(JOIN_ENDS) == 0
        if not died:
            return
    raise AssertionError("it takes more calls than were tried")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b"]), st.booleans()),
        st.tuples(st.just("retry"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 700, 5_000])),
        st.sampled_from([("join", 0), ("crash", 0), ("crash", 1), ("define", 0), ("pause", 0), ("resume", 0)]),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(STEPS, st.sampled_from([None, 900, 5_400]))
async def test_each_window_has_one_row_whatever_happens(steps: list[tuple[str, int]], deadline: int | None) -> None:
    trigger = {**AFTER, "within": "hour", **({} if deadline is None else {"deadline_seconds": deadline})}
    world = await a_world(trigger)
    crash: list[Fault] = []
    failing = world.on(FaultyStore(world.store, lambda call: crash.pop() if crash and "list" not in call else None))
    paused = False
    for what, number in steps:
        world.clock.advance(1)
        try:
            match what:
                case "a" | "b":
                    await world.run(what, None if number else Failed("no", retryable=False), failing)
                case "retry":
                    failed = [run for name in "ab" for run in await world.rows(name) if run.state is State.FAILED]
                    if failed:
                        await world.end(await failing.runs.retry_run(failed[number % len(failed)].id), by=failing)
                case "wait":
                    world.clock.advance(number)
                case "join":
                    await world.join(failing)
                case "crash":
                    crash.append(list(Fault)[number])
                case "define":
                    await world.define("load", trigger, failing)
                case _:
                    paused = True
                    await getattr(failing.jobs, f"{what}_job")("load")
        except (Outage, Conflict):
            continue
    crash.clear()
    for name in ("a", "b"):
        for run in await world.rows(name):
            if not run.finished:
                world.clock.advance(61)  # whoever had it claimed died
                await world.end(run)
    await world.join()
    if deadline is not None:
        world.clock.advance(deadline + 3_600)
        await world.join()
    rows = await world.rows()
    covered: dict[Instant, int] = {}
    for row in rows:
        for start in range(row.fire_at, (row.last_fire_at or row.fire_at) + 1, HOUR):
            covered[start] = covered.get(start, 0) + 1
    assert max(covered.values(), default=1) == 1, "a window has one row"
    came = {name: await _came(world, name, deadline) for name in ("a", "b")}
    whole = came["a"] & came["b"]
    fired = {row.fire_at for row in rows if row.state is not State.SKIPPED}
    assert fired <= whole <= covered.keys()
    assert paused or fired == whole
    if deadline is not None and not paused:
        over = range(START + 10 * HOUR, world.clock.now() - deadline * SECOND - 3 * SECOND, HOUR)
        assert covered.keys() >= set(over), "a window whose deadline has passed is accounted for"


async def _came(world: World, name: str, deadline: int | None) -> set[Instant]:
    """The windows in which this job had a run that completed in time."""
    runs = [run for run in await world.rows(name) if run.state is State.COMPLETED]
    windows = [(fire_of(run) // HOUR * HOUR, run.finished_at or 0) for run in runs]
    return {start for start, ended in windows if deadline is None or ended <= start + deadline * SECOND}


async def test_explanations_say_who_came_and_who_is_missing() -> None:
    world = await a_world({**AFTER, "deadline_seconds": 11 * 3600})
    explaining = world.operations.explaining
    await world.run("a")
    await world.join()
    told = await explaining.at("load")
    assert (told.fires, told.missing) == (True, ("b",))
    assert told.reason == (
        "it runs once all have come, until 2026-01-05T11:00:00Z; of the window that begins at 2026-01-05T00:00:00Z: "
        "b has not completed; a completed at 2026-01-05T10:00:00Z"
    )
    assert "before the one in which" in (await explaining.at("load", START - DAY)).reason
    await world.run("b")
    await world.join()
    told = await explaining.at("load", START)
    assert (told.fires, told.run is not None, told.missing) == (True, True, ())
    assert "b completed at 2026-01-05T10:00:00Z; it is due" in told.reason
    world.clock.advance(2 * DAY // SECOND)
    await world.join()
    page = await explaining.between("load", START - DAY, world.clock.now(), 9)
    assert [(item.at - START, item.fires, item.disposition) for item in page.items] == [
        (0, True, None), (DAY, False, Disposition.MISSED), (2 * DAY, True, None),
    ]  # fmt: skip
    assert [item.missing for item in page.items] == [(), ("a", "b"), ("a", "b")]
    await world.operations.jobs.delete_job("b")
    assert (await explaining.at("load")).reason.endswith("a and b have not completed; there is no job 'b'")


async def test_an_absence_of_years_takes_a_few_rows() -> None:
    world = await a_world({**AFTER, "within": {"seconds": 4}, "deadline_seconds": 4})
    world.clock.advance(10 * 366 * DAY // SECOND)
    await world.join()
    rows = await world.rows()
    assert len(rows) < 10
    last = world.clock.now() // (4 * SECOND) * 4 * SECOND - 4 * SECOND
    assert sum(row.fires for row in rows) == pytest.approx((last - (START + 10 * HOUR)) / SECOND / 4, abs=2)
    assert all(one.fire_at > (row.last_fire_at or row.fire_at) for row, one in pairwise(rows))
