"""From a failure to a message: real servers are told, once, together where many come together, and again if need be."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium import RunContext, Scheduler
from horarium.clock import SECOND
from horarium.delivery.signing import new_secret, verify
from horarium.errors import InvalidRequest, NotFound
from horarium.library.values import Run
from horarium.model import State
from horarium.services.alerts.notifier import NotifyDelivery
from tests.delivery.receiver import receiving
from tests.notify.world import SOON, a_job, at_rest, events, messages, running, runs
from tests.waiting import until

SECRET = new_secret(bytes(range(24)))
BUSY = b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


async def test_a_failure_is_told_in_a_signed_message() -> None:
    async with running() as scheduler, receiving() as receiver:
        shown = await scheduler.put_channel(
            "ops", {"type": "webhook", "url": receiver.url("/hook?token=t0p"), "signing_secret": SECRET, **SOON}
        )
        assert (shown["signing_secret"], shown["url"]) == ("********", receiver.url("/hook?token=********"))
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
        run = await scheduler.trigger_job("nightly")
        (note,) = await at_rest(scheduler, "notify", 1)
        (request,) = receiver.requests
        assert request.line == "POST /hook?token=t0p HTTP/1.1"
        assert request.headers["webhook-id"] == note.id
        timestamp = request.headers["webhook-timestamp"]
        signature = request.headers["webhook-signature"]
        assert verify(SECRET, note.id, timestamp, request.body, signature, now=int(timestamp))
        (message,) = messages(receiver)
        (event,) = message["data"].pop("events")
        assert message == {
            "type": "horarium.notification", "timestamp": message["timestamp"], "data": {"channel": "ops"},
        }  # fmt: skip
        assert event == {
            "event": "failed", "job": "nightly", "run_id": run.id, "count": 1, "fire_at": run.to_dict()["fire_at"],
            "at": event["at"], "message": event["message"], "attempt": 1, "worker": event["worker"],
            "seconds": event["seconds"],
        }  # fmt: skip
        assert event["worker"]
        assert 0 < event["seconds"] < 60
        assert event["message"].startswith("nightly failed: RuntimeError: no such table")
        assert (note.job, note.queue, note.cause, note.state) == (None, "notify", "follow_up", State.COMPLETED)


async def test_ten_failures_of_one_job_are_one_message_that_says_ten() -> None:
    async with running() as scheduler, receiving() as receiver:
        ops = {"type": "webhook", "url": receiver.url()}
        await scheduler.put_channel("ops", {**ops, "group_seconds": 600})
        for name in ("nightly", "hourly"):
            await a_job(scheduler, name, {"failed": [{"notify": "ops"}]})
        await asyncio.gather(*(scheduler.trigger_job("nightly") for _ in range(9)), scheduler.trigger_job("hourly"))
        await waiting(scheduler, 10)
        await scheduler.put_channel("ops", {**ops, "group_seconds": 0})
        await scheduler.trigger_job("nightly")
        notes = await at_rest(scheduler, "notify", 11)
        assert events(receiver) == [("failed", "hourly", 1), ("failed", "nightly", 10)]
        (message,) = messages(receiver)
        assert message["data"]["events"][1]["message"].endswith(" (10 times)")
        assert {note.state for note in notes} == {State.COMPLETED}
        results = [msgspec.json.decode(note.result or b"") for note in notes]
        (holder,) = [
            note.id for note, result in zip(notes, results, strict=True) if result == {"events": 2, "told": 11}
        ]
        assert [result for result in results if "told_with" in result] == [{"told_with": holder}] * 10


async def test_what_happens_in_the_quiet_period_is_told_together_after_it() -> None:
    async with running() as scheduler, receiving() as receiver:
        ops = {"type": "webhook", "url": receiver.url(), "group_seconds": 0}
        await scheduler.put_channel("ops", {**ops, "quiet_seconds": 3600})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 1)
        for _ in range(3):
            await scheduler.trigger_job("nightly")
        held = await waiting(scheduler, 3)
        assert {run.history[-1].message.partition(": ")[2] for run in held} == {"waits for more of the same"}
        assert events(receiver) == [("failed", "nightly", 1)]
        await scheduler.put_channel("ops", {**ops, "quiet_seconds": 0})
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 5)
        assert events(receiver)[1:] == [("failed", "nightly", 4)]


async def test_where_many_wait_one_look_at_them_does_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, honest = list[str](), NotifyDelivery._waiting

    async def counted(self: NotifyDelivery, run: Any, channel: str) -> Any:
        looks.append(run.id)
        return await honest(self, run, channel)

    monkeypatch.setattr(NotifyDelivery, "_waiting", counted)
    async with running() as scheduler, receiving() as receiver:
        await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), "group_seconds": 600})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
        await asyncio.gather(*(scheduler.trigger_job("nightly") for _ in range(20)))
        await waiting(scheduler, 20)
        assert len(looks) == 1


async def test_by_default_a_job_that_goes_on_failing_is_told_once_and_again_once_it_had_worked() -> None:
    works = threading.Event()

    def flips(run: RunContext) -> None:
        for page in range(300):
            run.log("page %d", page)
        if not works.is_set():
            raise RuntimeError("no paper")

    async with running(flips) as scheduler, receiving() as receiver:
        await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), "group_seconds": 0})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]}, handler="flips")
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 1)
        for count in (1, 2, 3):
            await scheduler.trigger_job("nightly")
            await waiting(scheduler, count)
        assert events(receiver) == [("failed", "nightly", 1)]
        (event,) = messages(receiver)[0]["data"]["events"]
        assert event["output"].splitlines()[-2:] == ["page 298", "page 299"]
        assert 1_400 < len(event["output"]) <= 1_500
        works.set()
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "handler/flips", 5)
        works.clear()
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 5)
        assert events(receiver)[1:] == [("failed", "nightly", 4)]


async def waiting(scheduler: Scheduler, count: int) -> list[Run]:
    """The notifications that wait for more, once there are so many."""
    found: list[Run] = []

    async def held() -> bool:
        found[:] = [run for run in await runs(scheduler, "notify") if run.state is State.PENDING and run.token]
        return len(found) == count

    await until(held)
    return found


async def test_a_recovery_is_named() -> None:
    async with running() as scheduler, receiving() as receiver:
        await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), **SOON})
        on = {"failed": [{"notify": "ops"}], "recovered": [{"notify": "ops"}]}
        await a_job(scheduler, "nightly", on)
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 1)
        await a_job(scheduler, "nightly2", on, handler="works")
        await scheduler.trigger_job("nightly2")
        await at_rest(scheduler, "handler/works", 1)
        assert [event for event, _, _ in events(receiver)] == ["failed"]
        await a_job(scheduler, "nightly", on, handler="works")
        for _ in range(2):
            await scheduler.trigger_job("nightly")
            await at_rest(scheduler, "handler/works", 2)
        await at_rest(scheduler, "handler/works", 3)
        await at_rest(scheduler, "notify", 2)
        assert [event for event, _, _ in events(receiver)] == ["failed", "recovered"]
        assert messages(receiver)[1]["data"]["events"][0]["message"] == "nightly recovered after 1 failed run"


async def test_a_message_that_was_not_taken_is_sent_again_and_is_the_same_message() -> None:
    async with (
        running() as scheduler,
        receiving(b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n") as receiver,
    ):
        await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), **SOON, "quiet_seconds": 0})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
        await scheduler.trigger_job("nightly")
        await until(lambda: receiver.requests)
        untold = scheduler._operations.channels.untold
        await until(lambda: untold(0))
        assert {name: each.error for name, each in (await untold(0)).items()} == {
            "ops": "answered 503 Service Unavailable"
        }
        receiver.reply = b"HTTP/1.1 204 OK\r\n\r\n"
        await scheduler.trigger_job("nightly")
        await at_rest(scheduler, "notify", 2)
        assert not await untold(0), "it was told again"
        # On a busy machine it may be refused again before the receiver takes it.
        told = Counter((each.headers["webhook-id"], each.body) for each in receiver.requests)
        assert (len({id for id, _ in told}), len(told)) == (2, 2)
        assert told[receiver.requests[0].headers["webhook-id"], receiver.requests[0].body] >= 2
        assert {count for _, _, count in events(receiver)} == {1}


async def test_a_channel_that_is_missing_is_waited_for_and_named() -> None:
    async with running() as scheduler:
        await scheduler.put_channel("nobody", {"type": "webhook", "url": "https://example.org/"})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "nobody"}]})
        await scheduler.delete_channel("nobody")
        await scheduler.trigger_job("nightly")

        async def says() -> bool:
            return any(run.error == "there is no channel named 'nobody'" for run in await runs(scheduler, "notify"))

        await until(says)
        (note,) = await runs(scheduler, "notify")
        assert note.state in (State.PENDING, State.RUNNING)
        async with receiving() as receiver:
            await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), "group_seconds": 600})
            sent = await scheduler.send_by_channel("nobody", "ops")
            await until(lambda: receiver.requests)
            assert events(receiver) == [("failed", "nightly", 1)], "by another channel, which waits for no more of them"
            assert receiver.requests[0].headers["webhook-id"] == sent.id


async def test_a_chain_hands_on_the_result_and_names_what_it_triggered() -> None:
    async with running() as scheduler:
        got: list[Run] = []
        await a_job(scheduler, "extract", {"completed": [{"trigger": "load", "payload": "result"}]}, handler="works")
        await scheduler.add_job("load", {"type": "interval", "every_seconds": 1e6}, queue="loads")
        run = await scheduler.trigger_job("extract")
        (follow,) = await at_rest(scheduler, "follow", 1)

        async def there() -> bool:
            got[:] = await runs(scheduler, "pull/loads")
            return bool(got)

        await until(there)
        (loaded,) = got
        assert msgspec.json.decode(follow.result or b"") == {"run": loaded.id}
        assert (loaded.payload, loaded.cause) == (b'{"rows":3}', "follow_up")
        assert loaded.unique_key == f"follow/1/{run.id}/completed/trigger:load"


async def test_what_follows_into_nothing_says_so() -> None:
    async with running() as scheduler:
        await a_job(scheduler, "extract", {"completed": [{"trigger": "gone"}]}, handler="works")
        await scheduler.trigger_job("extract")
        (follow,) = await at_rest(scheduler, "follow", 1)
        assert (follow.state, follow.error) == (State.FAILED, "there is no job named 'gone'")


async def test_a_job_that_triggers_itself_comes_to_an_end() -> None:
    async with running() as scheduler:
        await a_job(scheduler, "round", {"completed": [{"trigger": "round"}]}, handler="works")
        await scheduler.trigger_job("round")
        made = await at_rest(scheduler, "handler/works", 101)
        assert len(made) == 101
        (last,) = [run for run in made if (run.unique_key or "").startswith("follow/100/")]
        assert last.history[-1].message == "the chain ends here, 100 runs deep: round not triggered"


async def test_a_test_message_waits_for_nothing_and_says_what_went_wrong() -> None:
    async with running() as scheduler, receiving() as receiver:
        await scheduler.put_channel("ops", {"type": "webhook", "url": receiver.url(), "group_seconds": 600})
        run = await scheduler.test_channel("ops")
        await at_rest(scheduler, "notify", 1)
        assert events(receiver) == [("test", None, 1)]
        assert receiver.requests[0].headers["webhook-id"] == run.id
        receiver.reply = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
        await scheduler.test_channel("ops")
        failed = (await at_rest(scheduler, "notify", 2))[0]
        assert (failed.state, failed.attempt, failed.error) == (State.FAILED, 1, "answered 500 Internal Server Error")
        with pytest.raises(NotFound):
            await scheduler.test_channel("nobody")


async def test_a_private_address_is_refused_where_it_is_not_allowed() -> None:
    async with running() as scheduler:
        scheduler._runtime.configure(allow_private_targets=False)
        with pytest.raises(InvalidRequest, match="not a public address") as refused:
            await scheduler.put_channel("ops", {"type": "webhook", "url": "http://127.0.0.1:1/"})
        assert refused.value.field == "url"


async def test_a_mask_keeps_a_secret_for_the_same_place_only() -> None:
    async with running() as scheduler:
        channel = {"type": "webhook", "url": "https://example.org/a", "signing_secret": SECRET}
        await scheduler.put_channel("ops", channel)
        masked = {**channel, "signing_secret": "********"}
        await scheduler.put_channel("ops", {**masked, "url": "https://example.org/b"})
        stored = await scheduler._operations.channels.get("ops")
        assert stored.signing_secret == SECRET  # type: ignore[union-attr]
        with pytest.raises(InvalidRequest, match="give it again"):
            await scheduler.put_channel("ops", {**masked, "url": "https://evil.example/b"})
        with pytest.raises(InvalidRequest, match="nothing is stored"):
            await scheduler.put_channel("new", masked)
        assert [each["name"] for each in await scheduler.list_channels()] == ["ops"]
        await scheduler.delete_channel("ops")
        assert await scheduler.list_channels() == []


async def test_a_node_that_died_after_it_sent_leaves_the_same_message_to_the_next() -> None:
    """What is to be said is kept before it is sent, and those it tells for are over."""
    async with running() as scheduler, receiving() as receiver:
        ops = {"type": "webhook", "url": receiver.url()}
        await scheduler.put_channel("ops", {**ops, "group_seconds": 600})
        hung = asyncio.Event()

        async def hang(*streams: object) -> None:
            hung.set()
            await asyncio.Event().wait()

        receiver.reply = hang
        await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
        await asyncio.gather(*(scheduler.trigger_job("nightly") for _ in range(2)))
        await waiting(scheduler, 2)
        await scheduler.put_channel("ops", {**ops, "group_seconds": 0})
        await scheduler.trigger_job("nightly")
        await until(hung.is_set)
        (held,) = [run for run in await runs(scheduler, "notify") if run.state is State.RUNNING]
        store = scheduler._runtime.store
        (stored,) = await store.get_runs([held.id])
        assert stored is not None
        put_back = replace(
            stored, state=State.PENDING, lease_expires_at=None, started_at=None, due_at=stored.due_at + SECOND
        )
        from horarium.model import RunChange

        receiver.reply = b"HTTP/1.1 204 OK\r\n\r\n"
        await store.settle_runs([RunChange(put_back, stored.token, stored.state)], stored.due_at)
        notes = await at_rest(scheduler, "notify", 3)
        assert len(receiver.requests) == 2
        first, second = receiver.requests
        assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
        assert [count for _, _, count in events(receiver)] == [3, 3]
        assert {note.state for note in notes} == {State.COMPLETED}
