"""The command line as its users have it: real processes, real exit statuses, `--json` everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.outside import Server, horarium

pytestmark = pytest.mark.slow


def run(server: Server, *args: str, status: int = 0, stdin: str = "") -> str:
    done = horarium(*args, env={"HORARIUM_URL": server.url}, stdin=stdin)
    assert done.returncode == status, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def as_json(server: Server, *args: str, **more: Any) -> Any:
    return json.loads(run(server, *args, "--json", **more))


def test_the_whole_life_of_a_job(server: Server) -> None:
    added = as_json(server, "job", "add", "cli", "--every", "1h", "--queue", "cli", "--payload", '{"n": 1}')
    assert added == server("GET", "/jobs/cli"), "what the command shows is what the API shows"
    assert as_json(server, "job", "list", "--prefix", "cli") == [added]
    assert as_json(server, "job", "show", "cli") == added
    assert as_json(server, "job", "update", "cli", "--priority", "4")["priority"] == 4
    assert as_json(server, "job", "pause", "cli")["enabled"] is False
    assert as_json(server, "job", "resume", "cli")["enabled"] is True
    assert set(as_json(server, "job", "preview", "cli", "--count", "2")) == {"fires", "words"}
    first = as_json(server, "job", "trigger", "cli")
    assert as_json(server, "run", "show", first["id"])["state"] == "pending"
    assert as_json(server, "run", "cancel", first["id"])["state"] == "cancelled"
    again = as_json(server, "run", "retry", first["id"])
    assert {each["id"] for each in as_json(server, "run", "list", "--job", "cli")} == {first["id"], again["id"]}
    exported = run(server, "job", "export", "cli")
    assert as_json(server, "job", "import", "-", stdin=exported)["unchanged"] == 1
    run(server, "job", "delete", "cli")
    assert json.loads(run(server, "job", "show", "cli", "--json", status=1))["code"] == "not_found"


TRIGGERS = [
    (("--rrule", "FREQ=DAILY;BYHOUR=9"), "rrule"),
    (("--cron", "0 3 * * *", "--timezone", "Europe/Berlin"), "cron"),
    (("--at", "2199-01-01T00:00:00Z"), "once"),
    (("--when", "every other tuesday at 9:34am"), "phrase"),
]
TARGETS = [
    (("--http", "https://example.com/x"), "http"),
    (("--handler", "report", "--args", '{"n": 1}'), "handler"),
    (("--bus", "default"), "bus"),
]


def test_each_trigger_and_target_has_its_flag(server: Server) -> None:
    flags: list[tuple[tuple[str, ...], tuple[str, ...], str, str]]
    flags = [(trigger, ("--queue", "q"), kind, "queue") for trigger, kind in TRIGGERS]
    flags += [(("--every", "5m"), target, "interval", kind) for target, kind in TARGETS]
    for number, (trigger, target, trigger_type, target_type) in enumerate(flags):
        job = as_json(server, "job", "add", f"cli.{number}", *trigger, *target)
        assert (job["trigger"]["type"], job["target"]["type"]) == (trigger_type, target_type)


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("0 3 * * *", ["2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"]),
        ("FREQ=YEARLY;BYMONTH=5;BYMONTHDAY=1;BYHOUR=6", ["2026-05-01T06:00:00Z", "2027-05-01T06:00:00Z"]),
        ("every day at 9:34am", ["2026-01-01T09:34:00Z", "2026-01-02T09:34:00Z"]),
    ],
)
def test_a_preview_needs_no_server(text: str, fires: list[str]) -> None:
    done = horarium("preview", text, "--after", "2026-01-01T00:00:00Z", "--count", "2", "--json")
    assert json.loads(done.stdout)["fires"] == fires


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (("serve", "--prot", "1"), 2, "--port"),
        (("serve", "--port", "abc"), 2, "whole number"),
        (("serve", "--roles", "api,foo"), 2, "planner"),
        (("serve", "--store", "foo://x"), 2, "sqlite://"),
        (("serve", "--host", "0.0.0.0", "--port", "0"), 2, "--api-key"),
        (("serve", "--host", "0.0.0.0", "--port", "0", "--api-key", ""), 2, "--api-key"),
        (("serve", "--api-key", ""), 2, "empty"),
        (("serve", "--signing-secret", "x"), 2, "whsec_"),
        (("serve", "--config", "/nope.yaml"), 2, "/nope.yaml"),
        (("job", "add", "x", "--every", "5m"), 2, "--queue"),
        (("job", "add", "x", "--queue", "q"), 2, "--cron"),
        (("job", "list", "--url", "http://127.0.0.1:1"), 1, "horarium serve"),
        (("job",), 2, "Usage"),
        (("jub",), 2, "did you mean 'job'"),
        (("store", "check", "--store", "sqlite:////nope/x.db"), 1, "/nope"),
        (("preview", "every now and then"), 1, "now"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_says_what_to_do(args: tuple[str, ...], status: int, words: str) -> None:
    done = horarium(*args)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text("stor: sqlite:///x.db\n")
    assert "did you mean store?" in horarium("serve", "--config", str(file)).stderr
    assert "HORARIUM_STORE?" in horarium("serve", env={"HORARIUM_STROE": "x"}).stderr


def test_the_store_is_migrated_and_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    assert horarium("store", "migrate", "--store", url).returncode == 0
    assert json.loads(horarium("store", "check", "--store", url, "--json").stdout)["ok"] is True
