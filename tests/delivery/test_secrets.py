"""Secrets by reference: read where a request or a process is made; what is missing is named, and its value never is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horarium import InvalidJob, InvalidRequest, Scheduler, every
from horarium.delivery.secrets import MissingSecret, Secrets, references
from horarium.delivery.signing import new_secret, verify
from horarium.model import CommandTarget, HttpTarget
from horarium.model.secrets import SecretRef
from tests.client.test_shell_commands import failing, perform, sh
from tests.delivery.receiver import receiving
from tests.waiting import PATIENCE

SIGNS = new_secret(bytes(range(24)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "db-password").write_bytes(b"p:w d\r\n")
    return tmp_path


@pytest.fixture
async def scheduler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scheduler]:
    monkeypatch.setenv("TEST_TOKEN", "t0p")
    monkeypatch.setenv("TEST_SIGNS", SIGNS)
    options: dict[str, Any] = {"secrets_env_prefix": "TEST_", "secrets_dir": str(folder), "allow_private_targets": True}
    async with Scheduler("memory://", secrets_allowed=["env:*", "file:db-*"], **options) as scheduler:
        await scheduler.start()
        yield scheduler


def test_a_secret_is_read_from_a_variable_or_a_file(folder: Path) -> None:
    secrets = Secrets("TEST_", str(folder), {"TEST_TOKEN": "t0p", "OTHER": "x"})
    read = [secrets.read(SecretRef(name)) for name in ("env:TOKEN", "file:db-password")]
    assert (read, secrets.read("plain")) == (["t0p", "p:w d"], "plain")
    for name, why in (("env:OTHER", "no variable TEST_OTHER"), ("file:nothing", "no such file")):
        with pytest.raises(MissingSecret, match=f"the secret {name} is missing: .*{why}"):
            secrets.read(SecretRef(name))
    with pytest.raises(MissingSecret, match="env:TOKEN is no signing secret") as told:
        secrets.signing(SecretRef("env:TOKEN"))
    assert "t0p" not in str(told.value)


@pytest.mark.parametrize("name", ["file:../passwd", "file:/etc/passwd", "file:.hidden", "file:a/b", "env:", "x:A", "A"])
def test_no_reference_leads_out_of_its_place(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"secret": name}, SecretRef)


def test_a_target_without_references_is_left_as_it_is() -> None:
    target = HttpTarget(url="https://example.com", headers={"A": "1"}, signing_secret=SIGNS)
    assert Secrets().target(target) is target


async def test_a_request_has_the_secrets_and_nothing_else_has(scheduler: Scheduler) -> None:
    ref = {"secret": "env:TOKEN"}
    async with receiving() as receiver:
        target = {
            "type": "http", "url": receiver.url("/hook?a=1"), "headers": {"Authorization": ref, "X-Db": {"secret":
            "file:db-password"}}, "params": {"key": ref, "page": "2"}, "signing_secret": {"secret": "env:SIGNS"},
        }  # fmt: skip
        job = await scheduler.add_job("nightly", every("1h"), target=target)
        run = await scheduler.wait_for((await scheduler.trigger_job("nightly")).id, PATIENCE)
        assert run.state == "completed"
        (request,) = receiver.requests
        assert request.line == "POST /hook?a=1&key=t0p&page=2 HTTP/1.1"
        assert (request.headers["authorization"], request.headers["x-db"]) == ("t0p", "p:w d")
        timestamp = request.headers["webhook-timestamp"]
        signature = request.headers["webhook-signature"]
        assert verify(SIGNS, run.id, timestamp, request.body, signature, now=int(timestamp))
    shown = job.to_dict()["target"]
    assert (shown["headers"]["Authorization"], shown["params"]["key"]) == (ref, ref)
    assert shown["signing_secret"] == {"secret": "env:SIGNS"}
    (stored,) = await scheduler._runtime.store.get_jobs(["nightly"])
    assert b"t0p" not in msgspec.json.encode(stored)
    assert b"t0p" not in msgspec.json.encode(run.to_dict())


async def test_an_attempt_without_its_secret_fails_and_names_it(scheduler: Scheduler) -> None:
    target = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"Authorization": {"secret": "env:GONE"}}}
    run = await scheduler.add_run(target=target, retry={"attempts_max": 1})
    over = await scheduler.wait_for(run.id, PATIENCE)
    assert (over.state, over.error) == ("failed", "the secret env:GONE is missing: there is no variable TEST_GONE")


@pytest.mark.parametrize("value", ["t0p\r\nX-A: 1", "t0p\0"])
async def test_a_secret_that_no_header_can_have_fails_the_attempt_and_is_named(
    scheduler: Scheduler, folder: Path, value: str
) -> None:
    (folder / "db-odd").write_text(value)
    target = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"A": {"secret": "file:db-odd"}}}
    run = await scheduler.add_run(target=target, retry={"attempts_max": 1})
    over = await scheduler.wait_for(run.id, PATIENCE)
    why = "it holds a line break or a control character"
    assert over.error == f"the secret file:db-odd can't be sent in a header: {why}"


def test_bytes_that_are_no_text_are_sent_as_they_are() -> None:
    target = HttpTarget(url="https://example.com/", params={"key": SecretRef("env:ODD")})
    assert Secrets("", environment={"ODD": "t0p\udcff&"}).target(target).url == "https://example.com/?key=t0p%FF%26"


@pytest.mark.parametrize("value", ["t0p:word@example.com/x", "http://t0p@example.com/"])
async def test_an_address_that_is_none_is_named_and_not_shown(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TEST_ODD", value)
    await scheduler.put_channel("ops", {"type": "webhook", "url": {"secret": "env:ODD"}})
    over = await scheduler.wait_for((await scheduler.test_channel("ops")).id, PATIENCE)
    assert over.error == "the secret env:ODD is no URL that can be asked (one that begins with http:// or https://)"


async def test_only_secrets_that_the_setting_allows_may_be_named(scheduler: Scheduler) -> None:
    target = {"type": "http", "url": "https://example.com", "params": {"key": {"secret": "file:other"}}}
    with pytest.raises(InvalidJob, match=r"target.params.key: the setting secrets_allowed .* file:other"):
        await scheduler.add_job("nightly", every("1h"), target=target)
    with pytest.raises(InvalidRequest, match="url: the setting secrets_allowed"):
        await scheduler.put_channel("ops", {"type": "webhook", "url": {"secret": "file:other"}})
    command = CommandTarget(command=("ls",), env={"A": SecretRef("file:x"), "B": "1"})
    assert references(command) == [("target.env.A", "file:x")]


async def test_a_channel_is_told_at_an_address_that_is_a_secret(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        monkeypatch.setenv("TEST_HOOK", receiver.url("/told?token=t0p"))
        channel = {"type": "webhook", "url": {"secret": "env:HOOK"}, "signing_secret": {"secret": "env:SIGNS"}}
        shown = await scheduler.put_channel("ops", {**channel, "group_seconds": 0})
        assert (shown["url"], shown["signing_secret"]) == (channel["url"], channel["signing_secret"])
        await scheduler.put_channel("ops", {**channel, "group_seconds": 0})
        sent = await scheduler.test_channel("ops")
        assert (await scheduler.wait_for(sent.id, PATIENCE)).state == "completed"
        assert receiver.requests[0].line == "POST /told?token=t0p HTTP/1.1"


@pytest.mark.slow
def test_a_secret_is_read_by_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pin").write_text("7\n")
    monkeypatch.setenv("HORARIUM_SECRET_TOKEN", "t0p")
    monkeypatch.setenv("HORARIUM_SECRETS_DIR", str(tmp_path))
    env = {"A": {"secret": "env:TOKEN"}, "B": {"secret": "file:pin"}}
    assert perform(sh('echo "$A$B$HORARIUM_SECRET_TOKEN"', env=env))["stdout"].strip() == "t0p7"
    gone = failing(sh("true", env={"A": {"secret": "env:GONE"}}))
    assert str(gone) == "the secret env:GONE is missing: there is no variable HORARIUM_SECRET_GONE"
