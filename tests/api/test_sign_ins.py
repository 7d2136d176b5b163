"""Sign-ins that fail are logged, counted, and slowed down for their address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from horarium.api.problems import TooManyFailures
from horarium.api.refused import AGAIN_SECONDS, ALL_MAX, CALLER_MAX, RefusalLog, change_of
from horarium.api.sign_ins import (
    ADDRESSES_MAX,
    FREE_FAILURES,
    LOG_AGAIN_SECONDS,
    WAIT_SECONDS_MAX,
    WAITING_MAX,
    SignIns,
    origin_of,
)
from horarium.stores.memory import MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from tests.waiting import until

from .conftest import Api, a_definition

GUESS = {"authorization": "Bearer canary-key-9999"}


class Pauses:
    """Notes how long each caller would wait, and lets none of them wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def fail(sign_ins: SignIns, times: int, address: str = "192.0.2.1", *, guess: bool = True) -> None:
    for _ in range(times):
        sign_ins.failed(address, "GET /x", "wrong", guess=guess)


async def test_a_few_failures_cost_nothing_and_more_cost_more() -> None:
    pauses = Pauses()
    sign_ins = SignIns(ManualClock(NOW), pauses)
    fail(sign_ins, FREE_FAILURES)
    await sign_ins.slow_down("192.0.2.1", b"key")
    assert pauses.seconds == []
    for failures in (1, 1, 1_000):
        fail(sign_ins, failures)
        await sign_ins.slow_down("192.0.2.1", b"key")
    first, second, most = pauses.seconds
    assert 0 < first < second < most == WAIT_SECONDS_MAX


async def test_others_do_not_wait_nor_does_a_key_that_was_right_before() -> None:
    pauses = Pauses()
    sign_ins = SignIns(ManualClock(NOW), pauses)
    sign_ins.succeeded("192.0.2.1", b"known")
    fail(sign_ins, FREE_FAILURES + 100)
    await sign_ins.slow_down("192.0.2.1", b"known")
    await sign_ins.slow_down("192.0.2.2", b"new")
    assert pauses.seconds == []


async def test_failures_fade() -> None:
    clock = ManualClock(NOW)
    sign_ins = SignIns(clock)
    fail(sign_ins, FREE_FAILURES + 10)
    assert sign_ins.wait_seconds("192.0.2.1") > 0
    clock.advance(10)
    assert sign_ins.wait_seconds("192.0.2.1") == 0


async def test_a_request_without_a_key_is_no_guess() -> None:
    sign_ins = SignIns(ManualClock(NOW))
    fail(sign_ins, FREE_FAILURES * 10, guess=False)
    assert sign_ins.wait_seconds("192.0.2.1") == 0


async def test_no_more_than_so_many_wait() -> None:
    held = asyncio.Event()

    async def pause(seconds: float) -> None:
        await held.wait()

    sign_ins = SignIns(ManualClock(NOW), pause)
    fail(sign_ins, FREE_FAILURES + 1)
    waiting = [asyncio.create_task(sign_ins.slow_down("192.0.2.1", b"k")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyFailures):
        await sign_ins.slow_down("192.0.2.1", b"k")
    held.set()
    await asyncio.gather(*waiting)


@pytest.mark.slow
def test_addresses_are_forgotten_where_there_are_too_many() -> None:
    sign_ins = SignIns(ManualClock(NOW))
    fail(sign_ins, FREE_FAILURES + 1, "first")
    for number in range(ADDRESSES_MAX):
        fail(sign_ins, 1, f"other-{number}")
    assert sign_ins.wait_seconds("first") == 0


def test_an_ipv6_host_counts_with_its_whole_network() -> None:
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff:1") != origin_of("2001:db8:0:1::1")
    assert origin_of("192.0.2.1") != origin_of("192.0.2.2")


def test_the_log_has_a_line_a_minute_for_an_address(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(NOW)
    sign_ins = SignIns(clock)
    with caplog.at_level(logging.WARNING):
        fail(sign_ins, 4_500)
        fail(sign_ins, 1, "192.0.2.2")
        assert len(caplog.messages) == 2
        clock.advance(LOG_AGAIN_SECONDS)
        fail(sign_ins, 1)
    assert "4499 more" in caplog.messages[-1]


async def test_a_wrong_key_is_told_apart_from_a_missing_one(locked_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    missing = await locked_api.get("/jobs")
    wrong = await locked_api.get("/jobs", headers=GUESS)
    assert missing.code == wrong.code == "unauthorized"
    assert "no API key" in missing.json["detail"]
    assert "none of this server's" in wrong.json["detail"]
    assert "invalid_token" in wrong.headers["www-authenticate"]
    assert "invalid_token" not in missing.headers["www-authenticate"]
    assert "127.0.0.1: GET /api/v1/jobs" in caplog.text
    assert "canary" not in caplog.text
    assert 'refused_total{reason="unauthorized"} 2.0' in locked_api.telemetry.render()[0].decode()


async def test_the_reason_of_an_outage_is_for_those_with_a_key(locked_api: Api, api: Api) -> None:
    for each in (locked_api, api):
        each.health.ill("store", "no connection to db.internal:5432/horarium")
    open_answer = await locked_api.get("//readyz")
    assert open_answer.status == 503
    assert list(open_answer.json["problems"]) == ["store"]
    assert "db.internal" not in open_answer.body.decode()
    known = await locked_api.get("//readyz", headers={"authorization": "Bearer first-key-1234"})
    assert "db.internal" in known.body.decode()
    assert "db.internal" in (await api.get("//readyz")).body.decode()


async def test_failed_sign_ins_are_in_the_audit_and_bounded(locked_api: Api) -> None:
    api = locked_api
    admin = {"authorization": "Bearer first-key-1234"}
    for _ in range(5):
        await api.get("/jobs", headers={"authorization": "Bearer wrong-key-secret"})
        await api.get("/jobs")

    async def told() -> list[Any]:
        return list((await api.get("/audit", headers=admin)).json["items"])

    await until(told)
    (line,) = await told()
    assert (line["action"], line["outcome"], line["actor"]) == ("sign-in", "refused", "unknown")
    assert (line["address"], line["after"]["request"]) == ("127.0.0.1", "GET /api/v1/jobs")
    assert "wrong-key-secret" not in str(line)
    api.clock.advance(AGAIN_SECONDS)
    await api.get("/jobs", headers={"authorization": "Bearer wrong"})
    await until(lambda: _has(told, 2))


async def _has(told: Callable[[], Awaitable[list[Any]]], count: int) -> bool:
    return len(await told()) == count


async def test_a_change_that_was_refused_is_in_the_audit(locked_api: Api) -> None:
    api = locked_api
    admin = {"authorization": "Bearer first-key-1234"}
    key = (await api.post("/keys", {"name": "low", "roles": ["viewer"]}, headers=admin)).json["key"]
    for method in ("GET", "DELETE", "DELETE"):
        await api.send(method, "/keys/x", headers={"authorization": f"Bearer {key}"})
    for number in range(20):
        await api.post(f"/jobs/nightly-{number}/pause", headers={"authorization": f"Bearer {key}"})

    async def told() -> list[Any]:
        return list((await api.get("/audit?actor=low", headers=admin)).json["items"])

    await until(lambda: _has(told, CALLER_MAX))
    *pauses, line = sorted(await told(), key=lambda line: str(line["action"]))
    assert (line["action"], line["object"], line["outcome"]) == ("key.revoke", "key/x", "refused")
    assert line["after"] == {"request": "DELETE /api/v1/keys/x", "missing_scopes": ["admin"]}
    assert {len(line["request_id"])} == {32}
    assert {(each["action"], each["outcome"]) for each in pauses} == {("job.pause", "refused")}
    assert {each["object"] for each in pauses} == {f"job/nightly-{number}" for number in range(CALLER_MAX - 1)}


async def test_what_is_refused_to_a_bound_caller_is_in_the_audit(locked_api: Api) -> None:
    api = locked_api
    admin = {"authorization": "Bearer first-key-1234"}
    asked = {"name": "bound", "roles": ["editor"], "queues": ["mine"]}
    key = (await api.post("/keys", asked, headers=admin)).json["key"]
    target = {"type": "queue", "queue": "theirs"}
    job = {"trigger": {"type": "interval", "every_seconds": 60}, "target": target}
    reply = await api.send("PUT", "/jobs/nightly", job, headers={"authorization": f"Bearer {key}"})
    assert reply.code == "forbidden"

    async def told() -> list[Any]:
        return list((await api.get("/audit?object=job/nightly", headers=admin)).json["items"])

    await until(told)
    (line,) = await told()
    assert (line["actor"], line["action"], line["outcome"]) == ("bound", "job.update", "refused")
    assert "bound to queues" in line["after"]["why"]


async def test_what_is_refused_within_a_request_for_many_is_in_the_audit(locked_api: Api) -> None:
    api = locked_api
    admin = {"authorization": "Bearer first-key-1234"}
    asked = {"name": "bound", "roles": ["editor"], "queues": ["mine"]}
    key = {"authorization": f"Bearer {(await api.post('/keys', asked, headers=admin)).json['key']}"}

    def to(queue: str) -> dict[str, Any]:
        return {"target": {"type": "queue", "queue": queue}}

    async def told() -> list[Any]:
        items = (await api.get("/audit?actor=bound", headers=admin)).json["items"]
        return [line for line in items if line["outcome"] == "refused"]

    definitions = [
        {"name": f"job-{number}", "trigger": {"type": "interval", "every_seconds": 60}, **to(queue)}
        for number, queue in enumerate(["theirs", "mine", "theirs"])
    ]
    done = await api.post("/import", {"jobs": definitions}, headers=key)
    assert [each["outcome"] for each in done.json] == ["failed", "created", "failed"]
    await until(lambda: _has(told, 2))
    lines = sorted(await told(), key=lambda line: str(line["object"]))
    assert [(line["action"], line["object"]) for line in lines] == [
        ("job.update", "job/job-0"),
        ("job.update", "job/job-2"),
    ]
    for line in lines:
        assert line["after"]["request"] == "POST /api/v1/import"
        assert "bound to queues" in line["after"]["why"]
        assert line["after"]["refused"] == 2

    added = await api.post("/runs/batch", {"runs": [to("theirs"), to("mine"), to("theirs")]}, headers=key)
    assert [each["outcome"] for each in added.json] == ["failed", "created", "failed"]
    await until(lambda: _has(told, 3))
    (line,) = (line for line in await told() if line["action"] == "run.create")
    assert (line["object"], line["after"]["refused"]) == ("POST /api/v1/runs/batch", 2)


async def test_retries_that_are_refused_within_a_request_for_many_are_in_the_audit(locked_api: Api) -> None:
    api = locked_api
    admin = {"authorization": "Bearer first-key-1234"}
    asked = {"name": "bound", "roles": ["operator"], "queues": ["work"]}
    key = {"authorization": f"Bearer {(await api.post('/keys', asked, headers=admin)).json['key']}"}
    for name, overlap in (("free", "allow"), ("in-turn", "skip")):
        reply = await api.post("/jobs", a_definition(name, overlap=overlap, retry={"attempts_max": 1}), headers=admin)
        assert reply.status == 201
        await api.post(f"/jobs/{name}/trigger", headers=admin)
    taken = (await api.post("/runs/claim", {"queues": ["work"], "limit": 2}, headers=admin)).json["runs"]
    for run in taken:
        await api.post(f"/runs/{run['id']}/fail", {"token": run["lease"]["token"], "error": "x"}, headers=admin)
    for name in ("free", "in-turn"):
        moved = {"target": {"type": "queue", "queue": "theirs"}}
        assert (await api.send("PATCH", f"/jobs/{name}", moved, headers=admin)).status == 200
    done = await api.post("/runs/retry", {"ids": [run["id"] for run in taken]}, headers=key)
    assert done.json["left"] == {"forbidden": 2}

    async def told() -> list[Any]:
        return list((await api.get("/audit?action=run.retry", headers=admin)).json["items"])

    await until(told)
    (line,) = await told()
    assert (line["actor"], line["outcome"], line["object"]) == ("bound", "refused", "POST /api/v1/runs/retry")
    assert line["after"]["refused"] == 2


@pytest.mark.parametrize(
    ("request_line", "change"),
    [
        ("POST /api/v1/jobs", ("job.create", "POST /api/v1/jobs")),
        ("POST /api/v1/jobs/a/revert", ("job.revert", "job/a")),
        ("POST /jobs/a/run", ("job.trigger", "job/a")),
        ("POST /jobs/a/edit", ("job.update", "job/a")),
        ("POST /jobs", ("access", "POST /jobs")),
        ("PATCH /api/v1/jobs/pause", ("job.update", "job/pause")),
        ("DELETE /api/v1/jobs/a", ("job.delete", "job/a")),
        ("POST /api/v1/runs/1/cancel", ("run.cancel", "run/1")),
        ("POST /api/v1/runs/cancel", ("run.cancel", "POST /api/v1/runs/cancel")),
        ("POST /api/v1/runs/batch", ("run.create", "POST /api/v1/runs/batch")),
        ("POST /api/v1/runs/claim", ("access", "POST /api/v1/runs/claim")),
        ("POST /api/v1/runs/1/heartbeat", ("access", "POST /api/v1/runs/1/heartbeat")),
        ("POST /api/v1/import", ("access", "POST /api/v1/import")),
        ("PUT /api/v1/channels/c", ("channel.update", "channel/c")),
        ("POST /channels/c/test", ("channel.test", "channel/c")),
    ],
)
def test_what_was_refused_is_called_what_it_would_have_been(request_line: str, change: tuple[str, str]) -> None:
    method, _, path = request_line.partition(" ")
    assert change_of(method, path) == change


async def test_an_outage_costs_no_refusal(locked_api: Api) -> None:
    locked_api.failing.add("put_records")
    assert (await locked_api.get("/jobs", headers={"authorization": "Bearer wrong"})).status == 401


def test_all_addresses_together_are_bounded() -> None:
    clock = ManualClock(NOW)
    refused = RefusalLog(MemoryStore(), clock)
    assert sum(refused._may_tell(f"address/{number}", "x") for number in range(2 * ALL_MAX)) == ALL_MAX
    clock.advance(AGAIN_SECONDS)
    assert refused._may_tell("address/0", "x")


async def test_waiters_of_one_address_keep_no_other_out() -> None:
    held = asyncio.Event()

    async def pause(seconds: float) -> None:
        await held.wait()

    sign_ins = SignIns(ManualClock(NOW), pause)
    for address in ("192.0.2.1", "192.0.2.2"):
        fail(sign_ins, FREE_FAILURES + 1, address)
    waiting = [asyncio.create_task(sign_ins.slow_down("192.0.2.1", b"k")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    other = asyncio.create_task(sign_ins.slow_down("192.0.2.2", b"k"))
    await asyncio.sleep(0)
    assert not other.done()
    held.set()
    await asyncio.gather(other, *waiting)


async def guessed(api: Api) -> None:
    """An address that has guessed so often that its next short key is refused or waits for long."""
    for _ in range(FREE_FAILURES + 1):
        await api.get("/jobs", headers=GUESS)


@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_a_key_that_can_not_be_guessed_waits_for_no_one(
    locked_api: Api, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    admin = {"authorization": "Bearer first-key-1234"}
    key = (await locked_api.post("/keys", {"name": "named", "roles": [role]}, headers=admin)).json["key"]
    await guessed(locked_api)

    async def wait(self: SignIns, address: str, digest: bytes) -> None:
        raise TooManyFailures("it waits")

    monkeypatch.setattr(SignIns, "slow_down", wait)
    assert (await locked_api.get("/jobs", headers={"authorization": f"Bearer {key}"})).status == 200
    assert (await locked_api.get("/jobs", headers={"authorization": "Bearer another-short-one"})).status == 429


async def test_wrong_keys_that_are_no_guesses_owe_nothing(locked_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def pause(self: SignIns, address: str, digest: bytes) -> None:
        waited.append(self.wait_seconds(address))

    monkeypatch.setattr(SignIns, "slow_down", pause)
    for _ in range(FREE_FAILURES + 5):
        wrong = {"authorization": f"Bearer hk_{'x' * 43}"}
        assert (await locked_api.get("/jobs", headers=wrong)).status == 401
    await locked_api.get("/jobs", headers=GUESS)
    assert waited == [0]


class Issuer:
    """Where people sign in, as far as the pages show it."""

    place = "id.example"
    stamp = "now"


async def test_a_callback_without_our_cookie_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # `<img src=/sign-in/callback?...>` on any page asks so for each of its visitors.
    api, waited = Api(api_keys=["first-key-1234"], pages=True, people=Issuer()), list[float]()

    async def wait(self: SignIns, address: str, digest: bytes) -> None:
        waited.append(self.wait_seconds(address))

    monkeypatch.setattr(SignIns, "slow_down", wait)
    for _ in range(FREE_FAILURES + 4):
        assert (await api.get("//sign-in/callback?code=x&state=y")).status == 401
    await api.get("/jobs", headers=GUESS)
    assert waited == [0]


async def test_where_all_keys_are_long_nothing_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(api_keys=["k" * 32])
    monkeypatch.setattr(SignIns, "slow_down", None)
    await guessed(api)
    assert (await api.get("/jobs", headers={"authorization": "Bearer " + "k" * 32})).status == 200
