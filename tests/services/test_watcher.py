"""What is told before it ends, or though it never begins: late and overdue runs, queues, nodes; once, by any number."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from horarium.clock import HOUR, MINUTE, SECOND, to_datetime
from horarium.model import Node, Occasion, Run, State, Succeeded
from horarium.model.channels import WebhookChannel
from horarium.model.holds import HoldScope
from horarium.model.records import RecordFilter
from horarium.model.targets import NOTIFY_QUEUE
from horarium.operations.settling.settling import Settlement
from horarium.ports import RunFilter, Stats
from horarium.rules.following import message_of
from horarium.rules.watching import PREFIX
from horarium.services.alerts.serving import Serving
from horarium.services.alerts.troubles import LOOK_EVERY, LOST_AFTER, Troubles
from horarium.services.alerts.watcher import UNPLANNED_GRACE, Watcher
from horarium.services.planning.planner import Planner
from horarium.wire.definitions import read_definition
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting

LATE = {"late": [{"notify": "ops", "seconds": 30}]}
OVERDUE = {"overdue": [{"notify": "ops", "seconds": 90}]}


async def put(setting: Setting, name: str = "job", on: dict[str, Any] | None = None, **more: Any) -> None:
    fields = {
        "name": name, "trigger": {"type": "interval", "every_seconds": 3600}, "target": {"type": "queue", "queue": "q"},
        "on": LATE | OVERDUE if on is None else on, **more,
    }  # fmt: skip
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/"))
    await setting.operations.jobs.put_job(read_definition(fields))


def pass_by(setting: Setting, micros: int) -> None:
    setting.clock.advance(micros / SECOND)


def a_watcher(setting: Setting) -> Watcher:
    operations = setting.operations
    return Watcher(operations.context, operations.following, operations.reconciler.holding)


def a_planner(setting: Setting) -> Planner:
    operations = setting.operations
    return Planner(setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry)


async def notes(setting: Setting) -> list[Run]:
    """All notifications, the oldest first."""
    return list((await setting.store.list_runs(RunFilter(queue=NOTIFY_QUEUE), None, 200)).items)[::-1]


async def told(setting: Setting) -> list[str]:
    return sorted(msgspec.json.decode(run.payload or b"")["event"]["event"] for run in await notes(setting))


async def watched(setting: Setting) -> int:
    return len((await setting.store.list_records(RecordFilter(PREFIX), None, 200)).items)


async def test_what_has_not_begun_is_late_and_what_has_not_ended_overdue_each_once(setting: Setting) -> None:
    await put(setting)
    run = await setting.operations.jobs.trigger_job("job")
    watchers = [a_watcher(setting) for _ in range(3)]
    for seconds, expected in (
        (30, []),
        (3, ["late"]),
        (30, ["late"]),
        (30, ["late", "overdue"]),
        (30, ["late", "overdue"]),
    ):
        pass_by(setting, seconds * SECOND)
        for watcher in watchers:
            await watcher.step(setting.now)
        assert await told(setting) == expected, seconds
    found = [msgspec.json.decode(note.payload or b"")["event"] for note in await notes(setting)]
    assert {(event["job"], event["run_id"]) for event in found} == {("job", run.id)}
    assert {"within 30 s" in event["message"] for event in found if event["event"] == "late"} == {True}
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    await setting.operations.settling.settle([Settlement(claimed.id, claimed.token, Succeeded())])
    assert await told(setting) == ["late", "overdue"]


async def test_what_was_overdue_while_all_was_down_is_told_after_it(setting: Setting) -> None:
    await put(setting)
    await a_planner(setting).step(setting.now)
    pass_by(setting, 3 * HOUR + 10 * MINUTE)
    await a_watcher(setting).step(setting.now)
    await a_planner(setting).step(setting.now)
    watcher = a_watcher(setting)
    await watcher.step(setting.now)
    assert await told(setting) == ["late", "overdue"]
    (run,) = (await setting.store.claim_runs(["pull/q"], 9, "w", setting.now, setting.now, setting.steady)).runs
    assert msgspec.json.decode((await notes(setting))[0].payload or b"")["event"]["run_id"] == run.id


async def test_a_run_that_was_late_and_ended_before_any_watcher_looked_is_told_by_its_end(setting: Setting) -> None:
    await put(setting)
    await setting.operations.jobs.trigger_job("job")
    pass_by(setting, MINUTE)
    (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
    await setting.operations.settling.settle([Settlement(claimed.id, claimed.token, Succeeded())])
    assert await told(setting) == ["late"]
    await a_watcher(setting).step(setting.now)
    assert await told(setting) == ["late"]


async def test_a_fire_time_that_no_planner_deals_with_is_late(setting: Setting) -> None:
    await put(setting)
    watcher = a_watcher(setting)
    await watcher.step(setting.now)
    pass_by(setting, HOUR + 20 * SECOND)
    await watcher.step(setting.now)
    assert await told(setting) == []
    pass_by(setting, UNPLANNED_GRACE)
    await watcher.step(setting.now)
    assert await told(setting) == ["late"]
    await a_planner(setting).step(setting.now)
    pass_by(setting, MINUTE)
    await watcher.step(setting.now)
    assert await told(setting) == ["late", "overdue"]


async def test_a_late_event_of_what_is_held_names_the_hold(setting: Setting) -> None:
    await put(setting)
    (job,) = await setting.store.get_jobs(["job"])
    until = to_datetime(setting.now + 150 * MINUTE)
    made = await setting.operations.holds.add(HoldDefinition(scope=HoldScope(job="job"), until=until, reason="moving"))
    pass_by(setting, 2 * HOUR)
    await a_planner(setting).step(setting.now)
    await a_watcher(setting).step(setting.now)
    said = [msgspec.json.decode(run.payload or b"")["event"]["message"] for run in await notes(setting)]
    assert [f"held by {made.id}: moving" in each for each in said] == [True, True]
    pass_by(setting, 30 * MINUTE)
    await a_planner(setting).step(setting.now)
    caught_up = (await setting.store.list_runs(RunFilter(job="job"), None, 10)).items[0]
    assert job is not None
    assert f"held by {made.id}: moving" in message_of(job, caught_up, Occasion.LATE, 1, 30)


async def test_a_late_event_of_a_run_in_a_held_queue_names_the_hold(setting: Setting) -> None:
    await put(setting)
    pass_by(setting, HOUR)
    await a_planner(setting).step(setting.now)
    made = await setting.operations.holds.add(HoldDefinition(scope=HoldScope(all=True), reason="moving"))
    pass_by(setting, MINUTE)
    await setting.operations.reconciler.holding.look()
    await a_watcher(setting).step(setting.now)
    (note,) = await notes(setting)
    assert f"held by {made.id}: moving" in msgspec.json.decode(note.payload or b"")["event"]["message"]


async def test_only_jobs_that_ask_are_looked_at(setting: Setting) -> None:
    await put(setting, "plain", {"failed": [{"notify": "ops"}]})
    assert await watched(setting) == 0
    for number in range(3):
        await put(setting, "job", LATE, priority=number)
        await put(setting, "later", {} if number < 2 else OVERDUE)
    watcher = a_watcher(setting)
    await watcher.step(setting.now)
    assert await watched(setting) == 2
    await put(setting, "job", {})
    await setting.operations.jobs.delete_job("later")
    pass_by(setting, HOUR)
    await watcher.step(setting.now)
    assert await watched(setting) == 0
    await put(setting, "job", LATE)
    await setting.operations.jobs.trigger_job("job")
    pass_by(setting, HOUR // 2)
    await watcher.step(setting.now)
    assert await told(setting) == ["late"] * 2, "the run of the fire time that passed, and the one asked for"


async def test_imported_jobs_are_watched_too(setting: Setting) -> None:
    fields = {
        "name": "a", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "queue", "queue": "q"},
    }  # fmt: skip
    definitions = [read_definition({**fields, "on": LATE}), read_definition({**fields, "name": "b"})]
    await setting.operations.importing.put_jobs(definitions)
    assert await watched(setting) == 1
    pass_by(setting, SECOND)
    await setting.operations.importing.put_jobs([read_definition({**fields, "name": "b", "on": OVERDUE})])
    assert await watched(setting) == 2


# ---- queues and nodes -------------------------------------------------------------------------------------------


async def channels(setting: Setting) -> None:
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/"))
    await setting.operations.channels.put("quiet", WebhookChannel(url="https://example.org/", system=False))


def troubles(setting: Setting) -> Troubles:
    operations = setting.operations
    return Troubles(operations.context, operations.channels, operations.stats)


async def test_a_queue_without_a_worker_is_told_once_and_once_that_it_is_served_again(setting: Setting) -> None:
    await channels(setting)
    await put(setting, on={})
    several = [troubles(setting) for _ in range(2)]
    for turn in range(2):
        await setting.operations.jobs.trigger_job("job")
        for _ in range(12):
            pass_by(setting, LOOK_EVERY)
            for one in several:
                await one.step(setting.now)
        (claimed,) = (await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)).runs
        await setting.operations.settling.settle([Settlement(claimed.id, claimed.token, Succeeded())])
        for _ in range(4):
            pass_by(setting, LOOK_EVERY)
            for one in several:
                await one.step(setting.now)
        found = [each for each in await told(setting) if each in ("queue_unserved", "queue_served")]
        assert found.count("queue_served") == turn + 1
    events = [msgspec.json.decode(run.payload or b"") for run in await notes(setting)]
    ours = [each for each in events if "pull/q" in each["event"]["message"]]
    assert [(each["channel"], each["event"]["event"]) for each in ours] == [
        ("ops", "queue_unserved"), ("ops", "queue_served"),
    ] * 2  # fmt: skip


@pytest.mark.parametrize(("stopped", "expected"), [(None, ["node_lost"]), (START + SECOND, [])])
async def test_a_node_that_falls_silent_is_told_once(
    setting: Setting, stopped: int | None, expected: list[str]
) -> None:
    await channels(setting)
    node = Node(
        name="n", roles=("api",), started_at=START, beat_at=START, host="h", pid=1, version="1", stopped_at=stopped
    )
    await setting.store.beat_node(node)
    pass_by(setting, LOST_AFTER - SECOND)
    await troubles(setting).step(setting.now)
    assert await told(setting) == []
    for _ in range(3):
        pass_by(setting, LOOK_EVERY)
        await troubles(setting).step(setting.now)
    assert await told(setting) == expected
    assert [run.state for run in await notes(setting)] == [State.PENDING] * len(expected)


async def test_runs_are_counted_once_for_all_who_look(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    stats = setting.store.stats

    async def count(now: int) -> Stats:
        counted.append(now)
        await asyncio.sleep(0)
        return await stats(now)

    monkeypatch.setattr(setting.store, "stats", count)
    await asyncio.gather(Serving(setting.operations.stats).step(setting.now), troubles(setting).step(setting.now))
    assert len(counted) == 1
