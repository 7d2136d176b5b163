"""A queue with due runs that no worker serves is said: in the counts, and in the log."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from horarium.clock import MINUTE, SECOND, Instant
from horarium.model import RunChange, State
from horarium.ports import Stats
from horarium.services.alerts.serving import LOOK_EVERY, Serving
from horarium.stores.memory import MemoryStore
from tests.services.conftest import START, Setting


async def unserved(setting: Setting) -> set[str]:
    return {queue.queue for queue in (await setting.operations.stats()).queues if queue.unserved}


async def claim(setting: Setting, queue: str = "pull/q") -> None:
    assert (await setting.store.claim_runs([queue], 1, "w", setting.now, setting.now, setting.steady)).runs


async def test_a_queue_is_unserved_once_a_run_has_been_due_for_a_minute(setting: Setting) -> None:
    await setting.add_run()
    await setting.add_run("later", "pull/other", fire_at=START + MINUTE, due_at=START + MINUTE)
    setting.clock.advance(59)
    assert await unserved(setting) == set()
    setting.clock.advance(1)
    assert await unserved(setting) == {"pull/q"}


async def test_a_queue_with_a_claimed_run_is_served_however_long_others_wait(setting: Setting) -> None:
    await setting.add_run()
    await setting.add_run("next")
    await claim(setting)
    setting.clock.advance(600)
    assert await unserved(setting) == set()


async def test_runs_that_wait_for_an_earlier_one_of_their_job_have_a_worker(setting: Setting) -> None:
    await setting.add_run("a", serial=True, job_id="job")
    await setting.add_run("b", serial=True, job_id="job", fire_at=START + 1, due_at=START + 1)
    await claim(setting)
    first = await setting.run("a")
    retried = replace(first, state=State.PENDING, lease_expires_at=None, due_at=START + 10 * MINUTE)
    assert await setting.store.settle_runs([RunChange(retried, first.token, first.state)], START) == [True]
    setting.clock.advance(600)
    assert await unserved(setting) == set()
    setting.clock.advance(60)
    assert await unserved(setting) == {"pull/q"}


async def test_runs_behind_one_that_is_claimed_from_another_queue_have_a_worker(setting: Setting) -> None:
    await setting.add_run("a", "pull/old", serial=True, job_id="job")
    await claim(setting, "pull/old")
    await setting.add_run("b", serial=True, job_id="job", fire_at=START + 1, due_at=START + 1)
    setting.clock.advance(61)
    assert await unserved(setting) == set()


async def test_runs_that_wait_for_room_under_their_key_have_a_worker(setting: Setting) -> None:
    await setting.add_run("a", "pull/old", concurrency_key="k", concurrency_max=2)
    await claim(setting, "pull/old")
    await setting.add_run("b", concurrency_key="k", concurrency_max=2)
    setting.clock.advance(60)
    assert await unserved(setting) == {"pull/q"}
    await setting.add_run("c", "pull/old", concurrency_key="k", concurrency_max=2)
    await claim(setting, "pull/old")
    assert await unserved(setting) == set()


async def test_one_run_that_waits_for_nothing_else_is_enough(setting: Setting) -> None:
    await setting.add_run("a", "pull/old", concurrency_key="k", concurrency_max=1)
    await claim(setting, "pull/old")
    await setting.add_run("b", concurrency_key="k", concurrency_max=1)
    await setting.add_run("free")
    setting.clock.advance(60)
    assert await unserved(setting) == {"pull/q"}


async def test_a_warning_names_the_queue_and_is_repeated_every_ten_minutes(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "horarium")
    await setting.add_run(queue="handler/report")
    service = Serving(setting.operations.stats)
    lines = []
    for _ in range(0, 25 * 60, 30):
        await service.step(setting.now)
        lines.append(len(caplog.messages))
        setting.clock.advance(30)
    assert caplog.messages[0] == "no worker serves the queue handler/report: 1 run is due, the oldest since 90 s"
    assert lines.count(0) == 3
    assert lines[-1] == 3


async def test_what_only_one_look_shows_is_not_said(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "horarium")
    await setting.add_run()
    setting.clock.advance(60)
    service = Serving(setting.operations.stats)
    assert await service.step(setting.now) == setting.now + 30 * SECOND
    await claim(setting)
    setting.clock.advance(30)
    await service.step(setting.now)
    assert caplog.messages == []


async def test_where_counting_takes_long_it_is_done_before_anyone_asks(setting: Setting) -> None:
    counted = []

    class Large(MemoryStore):
        async def stats(self, now: Instant) -> Stats:
            counted.append(now)
            return Stats(jobs=1_000_000, jobs_enabled=1_000_000, queues=())

    setting.store = Large()
    service = Serving(setting.operations.stats)
    await service.step(setting.now)
    setting.clock.advance(5)
    assert (await setting.operations.stats()).jobs == 1_000_000
    assert counted == [START]
    for _ in range(4):
        setting.clock.advance(LOOK_EVERY / SECOND)
        await service.step(setting.now)
        assert (await setting.operations.stats()).jobs == 1_000_000
        assert setting.now - counted[-1] < MINUTE, "an answer that old is not given, so someone would wait"
