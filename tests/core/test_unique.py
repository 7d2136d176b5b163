"""One run at a time under a key: how long it is held, and what a later call makes of the run that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import SECOND
from horarium.errors import Conflict, InvalidRequest
from horarium.model import Run, State, Succeeded, key_as_given
from horarium.model.records import Record
from horarium.operations.runs.one_offs import Added
from horarium.operations.settling.settling import Settlement
from horarium.policies import Debounce
from horarium.rules.uniqueness import debounced, replacement
from horarium.wire.one_offs import read_run
from tests.core.test_operations import START, World


async def add(world: World, n: int = 0, **fields: Any) -> Added:
    target = {"type": "queue", "queue": "q", "payload": n}
    return await world.operations.one_offs.add_run(read_run({"target": target, **fields}))


async def begin(world: World) -> Run:
    now = world.clock.now()
    (run,) = (await world.operations.claiming.claim(["pull/q"], 1, "w", now, now)).runs
    return run


async def end(world: World, run: Run) -> None:
    await world.operations.settling.settle_one(Settlement(run.id, run.token, Succeeded(None)))


@pytest.mark.parametrize("until", ["begun", "finished", "forgotten"])
async def test_a_key_is_held_until(until: str) -> None:
    world, unique = World(), {"key": "k", "until": until}
    first = await add(world, unique=unique)
    assert first.outcome == "created"
    assert ((await add(world, unique=unique)).outcome, (await add(world, unique=unique)).run.id) == (
        "exists", first.run.id,
    )  # fmt: skip
    running = await begin(world)
    begun = await add(world, unique=unique)
    assert begun.new == (until == "begun")
    await end(world, running)
    over = await add(world, unique=unique)
    assert over.new == (until == "finished")
    last = begun.run if until == "begun" else over.run
    assert (await add(world, unique=unique)).run.id == last.id


async def test_a_key_is_held_for_a_time() -> None:
    world, unique = World(), {"key": "k", "for_seconds": 60}
    first = await add(world, unique=unique)
    await end(world, await begin(world))
    world.clock.advance(59)
    assert (await add(world, unique=unique)).run.id == first.run.id
    world.clock.advance(1)
    made = [(await add(world, unique=unique)).outcome for _ in range(2)]
    assert made == ["created", "exists"]
    assert (await add(world, unique_key="k")).run.id == first.run.id  # for as long as it is kept


async def test_a_waiting_run_is_replaced() -> None:
    world, unique = World(), {"key": "k", "until": "finished", "on_conflict": "replace"}
    first = await add(world, 1, unique=unique, delay_seconds=60, timeouts={"start_seconds": 10})
    again = await add(world, 2, unique=unique, delay_seconds=5, priority=7, timeouts={"start_seconds": 10})
    assert (again.outcome, again.run.id) == ("replaced", first.run.id)
    world.clock.advance(5)
    run = await begin(world)
    assert (run.payload, run.priority, run.due_at, run.start_by) == (b"2", 7, START + 5 * SECOND, START + 15 * SECOND)
    assert (await add(world, 3, unique=unique)).outcome == "exists"  # it waits no more


async def test_of_many_calls_the_last_counts() -> None:
    world, debounce = World(), {"key": "k", "seconds": 30, "max_seconds": 70}
    for number, due in enumerate((30, 50, 70, 70)):
        added = await add(world, number, debounce=debounce)
        assert (added.outcome, added.run.due_at) == ("debounced" if number else "created", START + due * SECOND)
        world.clock.advance(20)
    run = await begin(world)
    assert (run.id, run.payload, len(run.history)) == (added.run.id, b"3", 1)
    assert (await add(world, 9, debounce=debounce)).outcome == "created"
    await end(world, run)


async def test_of_callers_at_once_one_makes_the_run() -> None:
    world = World()
    for _ in range(3):
        unique = {"key": "k", "until": "finished"}
        added = await asyncio.gather(*(add(world, unique=unique) for _ in range(20)))
        assert (sum(each.new for each in added), len({each.run.id for each in added})) == (1, 1)
        await end(world, await begin(world))


async def test_many_at_once_say_what_became_of_each() -> None:
    world = World()
    rule = {"key": "k", "on_conflict": "replace"}
    target = {"type": "queue", "queue": "q"}
    definitions = [read_run({"target": target, "payload": n, "unique": rule}) for n in range(2)]
    wrong = read_run({"target": target, "unique": rule, "unique_key": "k"})
    created, replaced, refused = await world.operations.one_offs.add_runs([*definitions, wrong])
    assert isinstance(created, Added)
    assert isinstance(replaced, Added)
    assert (created.outcome, replaced.outcome, replaced.run.payload) == ("created", "replaced", b"1")
    assert isinstance(refused, InvalidRequest)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unique": {"key": "k"}, "debounce": {"key": "k", "seconds": 1}}, "debounce: give one of unique and debounce"),
        ({"unique": {"key": "k", "for_seconds": 0}}, "unique.for_seconds: expected float > 0"),
        ({"unique": {"key": "k", "for_seconds": 1, "until": "begun"}}, "give for_seconds or until, not both"),
        ({"unique": {"key": "ä" * 101}}, "unique.key: must be 1 to 200 bytes of text, not 202"),
        ({"debounce": {"key": "\ud800", "seconds": 1}}, "debounce.key: it holds half of a surrogate pair"),
        ({"debounce": {"key": "k"}}, "debounce.seconds"),
        ({"debounce": {"key": "k", "seconds": 1}, "delay_seconds": 5}, "debounce: it says when"),
        ({"debounce": {"key": "k", "seconds": 1}, "at": "2027-01-01T00:00:00Z"}, "debounce: it says when"),
    ],
)
async def test_a_wrong_rule_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await add(World(), **fields)


@pytest.mark.parametrize("rule", ["unique", "debounce"])
async def test_a_key_that_a_run_of_another_queue_holds_is_refused_by_its_field(rule: str) -> None:
    world = World()
    asked: dict[str, Any] = {rule: {"key": "k"} if rule == "unique" else {"key": "k", "seconds": 5}}
    await add(world, **asked)
    with pytest.raises(Conflict, match=f"{rule}.key: 'k' is held by a run in pull/q") as refused:
        await world.operations.one_offs.add_run(read_run({"target": {"type": "queue", "queue": "other"}, **asked}))
    assert refused.value.field == f"{rule}.key"


@pytest.mark.parametrize("key", ["Straße 7", "k\n\x00", "日本", "%20", "ä" * 100, "x" * 200])
async def test_a_key_is_any_text_in_each_generation(key: str) -> None:
    world, unique = World(), {"key": key, "until": "begun"}
    for _ in range(3):
        assert [(await add(world, unique=unique)).outcome for _ in range(2)] == ["created", "exists"]
        run = await begin(world)
        assert key_as_given(run.unique_key) == key
    await add(world, debounce={"key": key, "seconds": 0})
    assert (await begin(world)).attempt == 1


async def test_a_later_generation_of_a_key_is_no_other_caller_s_key() -> None:
    world, unique = World(), {"key": "k", "until": "begun"}
    for _ in range(2):
        await add(world, unique=unique)
        await begin(world)
    assert [(await add(world, unique_key=f"k {generation}")).new for generation in range(3)] == [True] * 3


async def test_what_is_remembered_of_a_key_goes_with_its_runs() -> None:
    world, unique = World(), {"key": "k", "until": "begun"}
    for _ in range(3):
        await add(world, unique=unique, retention={"finished_seconds": 0})
        await end(world, await begin(world))
    assert await world.operations.one_offs.prune_keys(None) is None
    names = ["unique/=k"]
    assert await world.store.get_records(names) == [Record(name="unique/=k", body=b"", version=3)]
    await world.store.prune_runs(world.clock.now(), 10)
    await world.operations.one_offs.prune_keys(None)
    assert await world.store.get_records(names) == [None]
    assert [(await add(world, unique=unique)).outcome for _ in range(2)] == ["created", "exists"]


def a_waiting(at: int, **fields: Any) -> Run:
    return Run(id="r", queue="q", fire_at=at, due_at=at, created_at=at, **fields)


MOMENTS = st.integers(0, 1000)


@given(calls=st.lists(MOMENTS, min_size=1, max_size=8), seconds=st.integers(0, 100), most=st.integers(0, 300))
def test_a_debounced_run_is_never_later_than_its_bound(calls: list[int], seconds: int, most: int) -> None:
    rule = Debounce("k", seconds, most)
    calls.sort()
    first = calls[0] * SECOND
    run = debounced(a_waiting(first), rule, first, first)
    for at in calls[1:]:
        if at * SECOND < run.due_at:
            now = at * SECOND
            after = replacement(run, a_waiting(now, payload=b"%d" % at), rule, now)
            assert after is not None
            assert run.due_at <= after.due_at <= max(first + most * SECOND, now)
            assert (after.id, after.payload, after.state) == ("r", b"%d" % at, State.PENDING)
            run = after
