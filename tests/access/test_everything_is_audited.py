"""Each operation that changes something leaves one entry in the audit: through the API, the pages and the library.

The lists of operations are those of the code: one that is new has no case here, and is seen.
"""

from __future__ import annotations

import inspect
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from horarium import Scheduler, every
from horarium.access.audit import AuditFilter, page
from horarium.access.keys import ENTROPY_BYTES, digest_of
from horarium.access.roles import Scope
from horarium.access.sessions import ID_CHARS, Sessions
from horarium.clock import to_datetime, to_text
from horarium.delivery.signing import new_secret
from horarium.errors import InvalidRequest
from horarium.model import State
from horarium.model.channels import CHANNEL as CHANNEL_RECORD
from horarium.model.channels import UNTOLD, EmailChannel, Told, Untold
from horarium.model.plans import PLAN
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.node.backends import make_store
from horarium.operations.plans.making import PlanMaking
from horarium.ports import RunFilter, Store
from horarium.rules.following import notify_run
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from tests.api.conftest import Api, a_definition

pytestmark = pytest.mark.slow

KEY = "first-key-1234567890"
ADMIN = {"authorization": f"Bearer {KEY}"}
SECRET = new_secret(bytes(range(24)))
SIGNED = {"type": "http", "url": "https://example.org/hook", "signing_secret": SECRET}
CHANNEL = {"type": "webhook", "url": "https://example.org/hook?token=t0p-s3cret", "signing_secret": SECRET}
CALENDAR = {"weekend": ["FRI", "SAT"], "holidays": ["2027-01-01"]}
LIMIT = {"max": 5, "per_seconds": 60}
HIDDEN = (SECRET, "t0p-s3cret", KEY, "hk_")
READS = {"POST /preview"}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Not open yet."""
    return make_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/audit.db")


@pytest_asyncio.fixture
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    yield store
    await store.close()


@dataclass
class Case:
    """What is asked for, and the one entry that must be there afterwards. `{run}` and `{new}`: the ids of a run that
    was there and of the newest one; `{plan}`: of the newest plan."""

    what: str
    action: str
    object: str
    body: Any = None
    path: str = ""
    before: bool = False
    after: bool = True
    form: dict[str, str] = field(default_factory=dict)


async def entries(store: Store) -> list[Any]:
    return list((await page(store, AuditFilter(), None, 1_000)).items)


async def runs(store: Store, *states: State) -> list[str]:
    found = await store.list_runs(RunFilter(states=frozenset(states)), None, 100)
    return [run.id for run in sorted(found.items, key=lambda run: run.created_at)]


def ones(size: int) -> bytes:
    return b"1" * size


SESSION = digest_of(urlsafe_b64encode(ones(ENTROPY_BYTES)).decode().rstrip("="))[:ID_CHARS]


async def the_hold(store: Store) -> str:
    """The id of the one hold, or nothing."""
    found = (await store.list_records(RecordFilter("hold/"), None, 1)).items
    return found[0].name.removeprefix("hold/") if found else ""


async def the_batch(store: Store) -> str:
    """The id of the newest batch, or nothing."""
    found = (await store.list_records(RecordFilter("batch/", descending=True), None, 1)).items
    return found[0].name.removeprefix("batch/") if found else ""


async def check(store: Store, seen: set[str], case: Case, actor: tuple[str, str], run: str) -> None:
    """There is one entry more, and it is this one."""
    fresh = [line for line in await entries(store) if line.id not in seen]
    newest = (await runs(store))[-1] if await runs(store) else ""
    wanted = case.object.replace("{run}", run).replace("{new}", newest)
    wanted = wanted.replace("{plan}", await the_plan(store)).replace("{hold}", await the_hold(store))
    wanted = wanted.replace("{batch}", await the_batch(store))
    told = [(line.actor, line.kind, line.action, line.object, line.outcome) for line in fresh]
    assert told == [(*actor, case.action, wanted, "done")], case.what
    (line,) = fresh
    assert (line.before is not None, line.after is not None) == (case.before, case.after), (case.what, line)
    assert not any(text in repr(line) for text in HIDDEN), case.what
    seen.add(line.id)


# ---- the API ----------------------------------------------------------------------------------------------------

RULE = {
    "trigger": {"type": "interval", "every_seconds": 60, "anchor": "2026-01-01T00:00:00Z"},
    "starts_at": "2026-01-01T00:00:00Z",
}
HOLD = {"scope": {"queue": "elsewhere"}, "reason": "moving"}
RUN = {"target": {"type": "queue", "queue": "work"}}
API = [
    Case("POST /jobs", "job.create", "job/a", a_definition("a", target=SIGNED, **RULE)),
    Case("PUT /jobs/{name}", "job.update", "job/a", a_definition("a", priority=3, **RULE), before=True),
    Case("PATCH /jobs/{name}", "job.update", "job/a", {"priority": 4}, before=True),
    Case("POST /jobs/{name}/revert", "job.revert", "job/a", {"version": 1}, before=True),
    Case("POST /import", "job.update", "job/a", {"jobs": [a_definition("a", priority=5, **RULE)]}, before=True),
    Case("POST /jobs/{name}/pause", "job.pause", "job/a", {"reason": "moving"}, before=True),
    Case("POST /jobs/{name}/resume", "job.resume", "job/a", before=True),
    Case("POST /jobs/{name}/fires/{instant}/skip", "job.skip", "job/a", before=True),
    Case("POST /jobs/{name}/fires/{instant}/move", "job.move", "job/a", {"to": "2030-01-01T00:00:07Z"}, before=True),
    Case("DELETE /jobs/{name}/fires/{instant}", "job.unskip", "job/a", before=True),
    Case("POST /jobs/{name}/trigger", "job.trigger", "job/a"),
    Case("PATCH /jobs/{name}", "job.update", "job/a", {"approval": {}}, before=True),
    Case("POST /jobs/{name}/trigger", "job.trigger", "job/a"),
    Case("POST /approvals/{id}", "approval.approve", "run/{run}", {"decision": "approve"}, before=True),
    Case("PATCH /jobs/{name}", "job.update", "job/a", {"approval": None}, before=True),
    Case("POST /runs/{id}/cancel", "run.cancel", "run/{run}", before=True),
    Case("POST /runs/{id}/retry", "run.retry", "run/{run}"),
    Case("POST /jobs/{name}/backfill", "job.backfill", "job/a",
         {"start": "2026-11-01T00:00:00Z", "end": "2026-11-01T00:02:00Z"}),
    Case("POST /jobs/{name}/history", "job.history", "job/a", {"system": "cron", "runs": [
        {"fire_at": "2027-01-14T00:00:00Z", "finished_at": "2027-01-14T00:00:01Z", "state": "completed"}]}),
    Case("POST /runs", "run.create", "run/{new}", RUN),
    Case("POST /runs/batch", "run.create", "run/{new}", {"runs": [RUN]}),
    Case("POST /runs/cancel", "run.cancel", "run/{run}", {"ids": ["{run}"]}, before=True),
    Case("POST /runs/retry", "run.retry", "run/{run}", {"ids": ["{run}"]}),
    Case("PUT /channels/{name}", "channel.create", "channel/a", CHANNEL),
    Case("POST /channels/{name}/test", "channel.test", "channel/a"),
    Case("POST /channels/{name}/send-by", "channel.send_by", "channel/a", {"by": "b"}),
    Case("DELETE /channels/{name}", "channel.delete", "channel/a", before=True, after=False),
    Case("PUT /calendars/{name}", "calendar.create", "calendar/a", CALENDAR),
    Case("DELETE /calendars/{name}", "calendar.delete", "calendar/a", before=True, after=False),
    Case("POST /holds", "hold.create", "hold/{hold}", HOLD),
    Case("PATCH /holds/{id}", "hold.update", "hold/{hold}", {"reason": "longer"}, before=True),
    Case("DELETE /holds/{id}", "hold.lift", "hold/{hold}", before=True),
    Case("POST /batches", "batch.create", "batch/{batch}", {"name": "a"}),
    Case("POST /batches/{id}/cancel", "batch.cancel", "batch/{batch}", before=True),
    Case("POST /batches", "batch.create", "batch/{batch}", {"name": "b", "runs": [RUN], "open": True}),
    Case("POST /batches/{id}/runs", "batch.add", "batch/{batch}", {"runs": [RUN]}, before=True),
    Case("POST /batches/{id}/close", "batch.close", "batch/{batch}", before=True),
    Case("POST /batches/{id}/retry", "batch.retry", "batch/{batch}", before=True),
    Case("POST /plans", "plan.create", "plan/{plan}", {"documents": {"jobs": [a_definition("planned", **RULE)]}}),
    Case("POST /plans/{id}/apply", "job.create", "job/planned"),
    Case("POST /feeds", "feed.create", "feed/a", {"name": "a"}),
    Case("DELETE /feeds/{name}", "feed.revoke", "feed/a", after=False),
    Case("PUT /queues/{queue}", "queue.set", "queue/pull/q", {"fair_weights": {"gold": 3}}, before=True),
    Case("PUT /rates/{key}", "rate.set", "rate/a", LIMIT),
    Case("DELETE /rates/{key}", "rate.reset", "rate/a", before=True, after=False),
    Case("POST /keys", "key.create", "key/a", {"name": "a", "roles": ["viewer"]}),
    Case("POST /attention/acknowledge", "attention.acknowledge", "attention/unserved/pull/work",
         {"cause": "unserved/pull/work", "reason": "known"}),
    Case("POST /attention/reopen", "attention.open", "attention/unserved/pull/work", {"cause": "unserved/pull/work"},
         before=True, after=False),
    Case("DELETE /keys/{name}", "key.revoke", "key/a", after=False),
    Case("DELETE /sessions/{session}", "session.end", f"session/{SESSION}", after=False),
    Case("DELETE /jobs/{name}", "job.delete", "job/a", before=True, after=False),
]  # fmt: skip


async def test_each_change_through_the_api_leaves_one_entry(opened: Store) -> None:
    api, store = Api([KEY], store=opened), opened
    await Sessions(store, api.clock, ones).begin("key", "0")
    await untold(store, "a", other="b")
    seen: set[str] = set()
    for case in API:
        api.clock.advance(61 if "acknowledge" in case.what else 1)
        run = await the_run(api.store, case)
        method, _, path = case.what.partition(" ")
        about = await the_hold(api.store) if path.startswith("/holds") else run
        about = await the_batch(api.store) if path.startswith("/batches") else about
        path = path.format(name="a", key="a", queue="q", id=about, session=SESSION, instant="2030-01-01T00:00:00Z")
        body = {"ids": [run]} if case.body == {"ids": ["{run}"]} else case.body
        reply = await api.send(method, path, body, headers=ADMIN)
        assert reply.status < 300, (case.what, reply.body)
        await check(store, seen, case, ("api-key", "key"), run)


async def untold(store: Store, channel: str, other: str) -> None:
    """A channel that did not take a message, and another one."""
    told = Told("failed", "nightly", None, None, to_text(NOW), "nightly failed: no such table")
    note = replace(notify_run(channel, told, "note", NOW), state=State.FAILED, finished_at=NOW)
    await store.add_runs([note])
    body = msgspec.json.encode(Untold(note.id, NOW, NOW, "connection refused"))
    mail = msgspec.json.encode(EmailChannel(to=("ops@example.org",)))
    records = Record(name=UNTOLD + channel, body=body), Record(name=CHANNEL_RECORD + other, body=mail)
    assert await store.put_records([RecordChange(record) for record in records]) == [True, True]


PLANS_MADE: list[str] = []


@pytest.fixture(autouse=True)
def plans_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids have a half that no store knows."""
    make = PlanMaking.make

    async def noted(*given: Any, **more: Any) -> Any:
        plan = await make(*given, **more)
        PLANS_MADE.append(plan.id)
        return plan

    monkeypatch.setattr(PlanMaking, "make", noted)


async def the_plan(store: Store) -> str:
    """The stored half of the newest one's id."""
    found = (await store.list_records(RecordFilter(PLAN, descending=True), None, 1)).items
    return found[0].name.removeprefix(PLAN) if found else ""


async def the_run(store: Store, case: Case) -> str:
    """The run, or the plan, that a case is about."""
    if "apply" in case.what or case.what in ("POST /plans/{id}/approve", "approve_plan"):
        return PLANS_MADE[-1]
    if case.what == "POST /holds/{id}/lift":
        return await the_hold(store)
    if "retry" in case.what:
        return (await runs(store, State.CANCELLED))[-1]
    return (await runs(store, State.PENDING) or [""])[-1]


def test_the_api_has_no_other_changes() -> None:
    found = set()
    for route in Api().app.routes:
        method = route.methods[0]
        if route.path.startswith("/api/") and route.scope not in (None, Scope.WORK) and method != "GET":
            found.add(f"{method} {route.path.removeprefix('/api/v1')}")
    assert found - READS == {case.what for case in API}


# ---- the library ------------------------------------------------------------------------------------------------

AT = to_datetime(NOW).replace(hour=0, minute=0, second=0, microsecond=0)
HOURLY = every("1h", anchor=AT)
FIRE = AT.replace(year=AT.year + 2)
Step = Callable[[Scheduler, str | None, str], Awaitable[Any]]
"""A call in the name of an actor, about a run."""


async def with_batch(scheduler: Scheduler, step: Callable[[str], Awaitable[Any]]) -> Any:
    """The step, with the id of the newest batch."""
    return await step((await scheduler.list_batches())[0].id)


async def with_hold(scheduler: Scheduler, call: Callable[[str], Awaitable[Any]]) -> None:
    (hold,) = await scheduler.list_holds()
    await call(hold["id"])


LIBRARY: list[tuple[Case, Step]] = [
    (Case("add_job", "job.create", "job/a"),
     lambda s, who, run: s.add_job("a", HOURLY, starts_at=AT, http=SIGNED, labels={"x": "y"}, approval={},
                                  actor=who)),
    (Case("declare", "job.create", "job/b"),
     lambda s, who, run: s.declare([{"name": "b", "trigger": every("1h"), "handler": "h"}], actor=who)),
    (Case("skip_fire", "job.skip", "job/a", before=True),
     lambda s, who, run: s.skip_fire("a", FIRE, actor=who)),
    (Case("move_fire", "job.move", "job/a", before=True),
     lambda s, who, run: s.move_fire("a", FIRE, FIRE.replace(minute=7), actor=who)),
    (Case("unskip_fire", "job.unskip", "job/a", before=True),
     lambda s, who, run: s.unskip_fire("a", FIRE, actor=who)),
    (Case("pause_job", "job.pause", "job/a", before=True), lambda s, who, run: s.pause_job("a", actor=who)),
    (Case("resume_job", "job.resume", "job/a", before=True), lambda s, who, run: s.resume_job("a", actor=who)),
    (Case("pause_jobs", "job.pause", "job/a", before=True),
     lambda s, who, run: s.pause_jobs(labels={"x": "y"}, actor=who)),
    (Case("resume_jobs", "job.resume", "job/a", before=True),
     lambda s, who, run: s.resume_jobs(labels={"x": "y"}, actor=who)),
    (Case("trigger_job", "job.trigger", "job/a"), lambda s, who, run: s.trigger_job("a", actor=who)),
    (Case("decide", "approval.approve", "run/{run}", before=True),
     lambda s, who, run: s.decide(run, "approve", actor=who)),
    (Case("cancel_run", "run.cancel", "run/{run}", before=True),
     lambda s, who, run: s.cancel_run(run, actor=who)),
    (Case("retry_run", "run.retry", "run/{run}"), lambda s, who, run: s.retry_run(run, actor=who)),
    (Case("backfill_job", "job.backfill", "job/a"),
     lambda s, who, run: s.backfill_job("a", *(AT.replace(hour=hour) for hour in (1, 2)), actor=who)),
    (Case("enqueue", "run.create", "run/{new}"), lambda s, who, run: s.enqueue("h", actor=who)),
    (Case("enqueue_many", "run.create", "run/{new}"), lambda s, who, run: s.enqueue_many("h", [{}], actor=who)),
    (Case("add_run", "run.create", "run/{new}"), lambda s, who, run: s.add_run(queue="q", actor=who)),
    (Case("add_runs", "run.create", "run/{new}"), lambda s, who, run: s.add_runs([{"queue": "q"}], actor=who)),
    (Case("cancel_runs", "run.cancel", "run/{run}", before=True),
     lambda s, who, run: s.cancel_runs(ids=[run], actor=who)),
    (Case("retry_runs", "run.retry", "run/{run}"), lambda s, who, run: s.retry_runs(ids=[run], actor=who)),
    (Case("acknowledge_cause", "attention.acknowledge", "attention/unserved/pull/q"),
     lambda s, who, run: s.acknowledge_cause("unserved/pull/q", "known", actor=who)),
    (Case("reopen_cause", "attention.open", "attention/unserved/pull/q", before=True, after=False),
     lambda s, who, run: s.reopen_cause("unserved/pull/q", actor=who)),
    (Case("put_channel", "channel.create", "channel/a"), lambda s, who, run: s.put_channel("a", CHANNEL, actor=who)),
    (Case("test_channel", "channel.test", "channel/a"), lambda s, who, run: s.test_channel("a", actor=who)),
    (Case("send_by_channel", "channel.send_by", "channel/a"),
     lambda s, who, run: s.send_by_channel("a", "b", actor=who)),
    (Case("delete_channel", "channel.delete", "channel/a", before=True, after=False),
     lambda s, who, run: s.delete_channel("a", actor=who)),
    (Case("put_calendar", "calendar.create", "calendar/a"),
     lambda s, who, run: s.put_calendar("a", CALENDAR, actor=who)),
    (Case("delete_calendar", "calendar.delete", "calendar/a", before=True, after=False),
     lambda s, who, run: s.delete_calendar("a", actor=who)),
    (Case("close_batch", "batch.create", "batch/{batch}"), lambda s, who, run: s.batch(actor=who).__aenter__()),
    (Case("close_batch", "batch.close", "batch/{batch}", before=True),
     lambda s, who, run: with_batch(s, lambda id: s.close_batch(id, actor=who))),
    (Case("cancel_batch", "batch.cancel", "batch/{batch}", before=True),
     lambda s, who, run: with_batch(s, lambda id: s.cancel_batch(id, actor=who))),
    (Case("retry_batch", "batch.retry", "batch/{batch}", before=True),
     lambda s, who, run: with_batch(s, lambda id: s.retry_batch(id, actor=who))),
    (Case("add_hold", "hold.create", "hold/{hold}"), lambda s, who, run: s.add_hold(HOLD, actor=who)),
    (Case("update_hold", "hold.update", "hold/{hold}", before=True),
     lambda s, who, run: with_hold(s, lambda id: s.update_hold(id, {"reason": "longer"}, actor=who))),
    (Case("lift_hold", "hold.lift", "hold/{hold}", before=True),
     lambda s, who, run: with_hold(s, lambda id: s.lift_hold(id, actor=who))),
    (Case("plan", "plan.create", "plan/{plan}"),
     lambda s, who, run: s.plan({"jobs": [a_definition("planned", **RULE)]}, actor=who)),
    (Case("approve_plan", "plan.approve", "plan/{plan}"), lambda s, who, run: s.approve_plan(run, actor=who)),
    (Case("apply_plan", "job.create", "job/planned"), lambda s, who, run: s.apply_plan(run, actor=who)),
    (Case("create_feed", "feed.create", "feed/a"), lambda s, who, run: s.create_feed("a", actor=who)),
    (Case("revoke_feed", "feed.revoke", "feed/a", after=False), lambda s, who, run: s.revoke_feed("a", actor=who)),
    (Case("set_fair_weights", "queue.set", "queue/pull/a", before=True),
     lambda s, who, run: s.set_fair_weights("a", {"gold": 3}, actor=who)),
    (Case("set_rate", "rate.set", "rate/a"), lambda s, who, run: s.set_rate("a", "5/1m", actor=who)),
    (Case("reset_rate", "rate.reset", "rate/a", before=True, after=False),
     lambda s, who, run: s.reset_rate("a", actor=who)),
    (Case("delete_job", "job.delete", "job/b", before=True, after=False),
     lambda s, who, run: s.delete_job("b", actor=who)),
    (Case("delete_jobs", "job.delete", "job/a", before=True, after=False),
     lambda s, who, run: s.delete_jobs(labels={"x": "y"}, actor=who)),
]  # fmt: skip


LOOKING = {"wait_for", 
    "configure", "explain", "fires", "get_channel", "get_job", "get_run", "list_channels", "list_jobs", "list_runs",
    "run_log", "stats", "attention", "compare_calendar", "get_calendar", "list_calendars", "list_rates",
    "fair_weights", "list_overrides",
    "add_handler", "handler", "job", "around", "on_shutdown", "on_startup", "result", "get_hold", "list_holds",
    "list_approvals",
    "forecast", "list_feeds", "list_plans", "batch", "get_batch", "list_batches", "wait_for_batch",
}  # fmt: skip
LIVING = {"open", "close", "start", "stop", "run_forever", "run_until_asked", "ask_to_stop", "loop"}
IN_A_TRANSACTION = {"enqueue_sql"}
"""PostgreSQL: `tests/stores`."""


@pytest.mark.parametrize("usual", ["boss", None])
async def test_each_change_through_the_library_leaves_one_entry(store: Store, usual: str | None) -> None:
    seen: set[str] = set()
    clock = ManualClock(NOW)
    async with Scheduler(store, clock=clock, actor=usual) as scheduler:
        await untold(store, "a", other="b")
        for number, (case, step) in enumerate(LIBRARY):
            clock.advance(61 if "acknowledge" in case.what else 1)
            # Without a name of its own, a call is in the name of the scheduler, if that has one.
            given = None if usual and number % 2 else f"who-{number}"
            run = await the_run(store, case)
            await step(scheduler, given, run)
            await check(store, seen, case, (given or usual or "", "local"), run)


async def test_without_an_actor_there_is_no_entry(store: Store) -> None:
    clock = ManualClock(NOW)
    async with Scheduler(store, clock=clock) as scheduler:
        await untold(store, "a", other="b")
        for case, step in LIBRARY:
            clock.advance(61 if "acknowledge" in case.what else 1)
            await step(scheduler, None, await the_run(store, case))
        assert await entries(store) == []
        for wrong in ("", "x" * 256, 7):
            with pytest.raises(InvalidRequest, match="actor"):
                await scheduler.enqueue("h", actor=wrong)  # type: ignore[arg-type]


def test_the_library_has_no_other_changes() -> None:
    public = {name for name in dir(Scheduler) if not name.startswith("_")}
    assert public - LOOKING - LIVING - IN_A_TRANSACTION == {case.what for case, _ in LIBRARY}
    for name in public - LOOKING - LIVING:
        assert "actor" in inspect.signature(getattr(Scheduler, name)).parameters, name
