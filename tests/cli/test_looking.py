"""Looking at a server: status, ids by their beginning, help, completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from horarium.client import Client
from horarium.wire.views import RunView
from tests.servers.live import live_server
from tests.waiting import eventually

pytestmark = pytest.mark.slow

Call = Callable[..., Result]
EVERY_HOUR = {"type": "interval", "every_seconds": 3600}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server, Client(server.url) as client:
        target = {"type": "command", "command": ["pg_dump", "-Fc", "a b"], "cwd": "/srv"}
        client.create_job({"name": "dump", "trigger": EVERY_HOUR, "target": target})
        yield server.url


@pytest.fixture
def call(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("HORARIUM_URL", url)

    def run(*args: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, args)
        assert result.exit_code == status, (result.output, result.stderr)
        return result

    return run


def a_failed_run(url: str, job: str, error: str) -> RunView:
    with Client(url) as client:
        target = {"type": "queue", "queue": job}
        trigger = {"type": "once", "at": "2100-01-01T00:00:00Z"}
        client.create_job({"name": job, "trigger": trigger, "target": target, "retry": {"attempts_max": 1}})
        client.trigger_job(job)
        (run,) = client.claim([job], 1, "w", 10)
        assert run.lease
        client.fail(run.id, run.lease.token, error)
        return run


def test_a_run_is_named_by_the_beginning_of_its_id(call: Call, url: str) -> None:
    with Client(url) as client:
        run = client.trigger_job("dump")
    for given in (run.id, run.id[:23], run.id[:23].replace("-", ""), run.id[:23].upper(), f"{run.id[:20]}..."):
        assert json.loads(call("run", "show", given, "--json").stdout)["id"] == run.id


def test_a_beginning_that_fits_several_runs_is_refused_with_their_ids(call: Call, url: str) -> None:
    with Client(url) as client:
        runs = [client.trigger_job("dump").id for _ in range(2)]
    refused = call("run", "show", runs[0][:4], status=2).stderr
    assert all(id in refused for id in runs)


def test_a_beginning_that_fits_no_run_is_not_found(call: Call) -> None:
    assert "there is no run whose id begins with 'ffffffff'" in call("run", "show", "ffffffff", status=1).stderr


def test_a_channel_that_is_not_there_sends_nothing(call: Call) -> None:
    assert "there is no other channel named 'ops'" in call("channel", "send-by", "nobody", "ops", status=1).stderr


def test_runs_of_a_job_that_is_not_there_are_an_error(call: Call) -> None:
    assert "there is no job named 'typo'" in call("run", "list", "--job", "typo", status=1).stderr


def test_a_job_shows_its_command_as_one_types_it(call: Call) -> None:
    shown = call("job", "show", "dump").stdout
    assert "pg_dump -Fc 'a b'" in shown
    assert "/srv" in shown


def test_the_history_of_a_run_can_not_steer_the_terminal(call: Call, url: str) -> None:
    run = a_failed_run(url, "hostile", "\x1b[2Jhello\x1b]52;c;cHduZWQ=\x07\r\nfake")
    shown = call("run", "show", run.id).stdout + call("run", "list", "--job", "hostile").stdout
    shown += call("run", "show", run.id, "--json").stdout
    assert not {"\x1b", "\x07", "\r"} & set(shown)
    assert "hello" in shown


def test_status_says_whether_all_is_well(call: Call, url: str) -> None:
    a_failed_run(url, "broken", "no disk")
    with Client(url) as client:
        client.trigger_job("dump")
    shown = call("status").stdout
    assert " is ready\n" in shown
    assert "pull/shell" in shown
    assert "needs attention:" in shown
    assert "failing/" in shown
    assert "\nnext:\n" in shown
    found = json.loads(call("status", "--json").stdout)
    assert (found["ready"], found["problems"]) == (True, {})
    assert {"nodes", "stats", "failed", "attention", "upcoming"} <= found.keys()


def test_status_shows_a_bound_key_its_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = "first-key-1234"
    with live_server([admin]) as server, Client(server.url, admin) as client:
        for queue in ("ours", "theirs"):
            client.create_job({"name": queue, "trigger": EVERY_HOUR, "target": {"type": "queue", "queue": queue}})
            client.trigger_job(queue)
        key = client.create_key("bound", ["viewer"], queues=["ours"])["key"]
        nothing = client.create_key("nothing", ["worker"])["key"]
        monkeypatch.setenv("HORARIUM_URL", server.url)
        monkeypatch.setenv("HORARIUM_API_KEY", key)
        shown, found = (CliRunner().invoke(cli, ["status", *more]) for more in ([], ["--json"]))
        monkeypatch.setenv("HORARIUM_API_KEY", nothing)
        refused = CliRunner().invoke(cli, ["status"])
    assert (shown.exit_code, found.exit_code, refused.exit_code) == (0, 0, 1), (shown.stderr, found.stderr)
    assert "pull/ours" in shown.stdout
    assert "theirs" not in shown.stdout
    assert json.loads(found.stdout)["nodes"] is None
    assert "runs:read" in refused.stderr


def test_all_is_not_well_while_runs_of_no_job_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server() as server, Client(server.url) as client:
        monkeypatch.setenv("HORARIUM_URL", server.url)
        assert "All is well." in CliRunner().invoke(cli, ["status"]).stdout
        client.add_run({"type": "queue", "queue": "alone"}, retry={"attempts_max": 1})
        (run,) = client.claim(["alone"], 1, "w", 10)
        assert run.lease
        client.fail(run.id, run.lease.token, "no")
        shown = CliRunner().invoke(cli, ["status"]).stdout
    assert "failed within the last hour:" in shown
    assert "All is well." not in shown


def test_status_of_no_server_fails_with_a_sentence(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_URL", "http://127.0.0.1:9")
    assert "127.0.0.1:9" in call("status", status=1).stderr


def test_help_and_the_flags_of_each_command_may_come_first(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.cli.shell.START_SECONDS", 0.0)
    for flags in (["--url", "http://127.0.0.1:9"], ["--url=http://127.0.0.1:9", "--json", "--api-key", "k"]):
        refused = call(*flags, "job", "list", status=1).stderr
        assert "no answer from http://127.0.0.1:9" in refused
    assert call("help", "job", "add").stdout == call("job", "add", "--help").stdout
    assert call("--json", "job", "list").stdout == call("job", "list", "--json").stdout


def test_help_has_its_flags_in_groups(call: Call) -> None:
    shown = call("job", "add", "--help").stdout
    titles = ["Trigger (one of them):", "Target (one of them):", "What is sent:", "Policies:", "Server and output:"]
    assert sorted(titles, key=shown.index) == titles
    assert shown.index(titles[0]) < shown.index("--cron EXPRESSION") < shown.index(titles[1])


def test_a_flag_that_does_not_fit_the_target_is_named(call: Call) -> None:
    refused = call("job", "add", "x", "--every", "5m", "--queue", "q", "--header", "A:b", status=2).stderr
    assert "--header belongs to --http" in refused


def test_what_the_server_refuses_is_told_with_its_flag(call: Call) -> None:
    refused = call("job", "add", "x", "--every", "5m", "--queue", "q", "--attempts", "5000", status=1).stderr
    assert "(--attempts)" in refused


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(call: Call, shell: str) -> None:
    assert "_HORARIUM_COMPLETE" in call("completion", shell).stdout


def test_a_job_that_can_never_fire_again_leaves_the_list(call: Call, url: str) -> None:
    def listed(*flags: str) -> list[tuple[str, str]]:
        return [(job["name"], job["state"]) for job in json.loads(call("job", "list", "--json", *flags).stdout)]

    with Client(url) as client:
        trigger, target = {"type": "interval", "every_seconds": 0.1}, {"type": "queue", "queue": "once"}
        client.create_job({"name": "once", "trigger": trigger, "target": target, "fires_max": 1})
        assert ("once", "enabled") in listed()
        eventually(lambda: list(client.list_runs(job="once")))
        client.cancel_run(next(iter(client.list_runs(job="once"))).id)
        eventually(lambda: client.get_job("once").state == "finished")
        assert "once" not in dict(listed())
        assert listed("--finished") == [("once", "finished")]
        assert dict(listed("--all"))["once"] == "finished"
        assert "finished" in call("job", "show", "once").stdout
        assert client.stats()["jobs_enabled"] == len(listed("--enabled"))
        client.delete_job("once")


def test_one_run_is_watched_until_it_is_over(call: Call, url: str) -> None:
    with Client(url) as client:
        trigger = {"type": "once", "at": "2100-01-01T00:00:00Z"}
        client.create_job({"name": "watched", "trigger": trigger, "target": {"type": "queue", "queue": "watched"}})
        ids = [client.trigger_job("watched").id for _ in range(2)]
        for run in client.claim(["watched"], 2, "w", 10):
            assert run.lease
            if run.id == ids[0]:
                client.complete(run.id, run.lease.token)
            else:
                client.fail(run.id, run.lease.token, "no\npaper", retryable=False)
    assert "completed   attempt 1, took " in call("run", "watch", ids[0]).stdout
    assert call("run", "watch", ids[1], status=1).stdout.rstrip().endswith(": no")
    told = call("run", "watch", ids[0], "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in told] == ["completed"]
    assert "not both" in call("run", "watch", ids[0], "--job", "watched", status=2).stderr
    assert "there is no job named 'typo'" in call("run", "watch", "--job", "typo", status=1).stderr


def test_a_wall_time_is_one_in_the_zone_of_the_job(call: Call, url: str) -> None:
    """The machine has another."""
    rule = {"type": "cron", "expression": "30 2 * * *", "timezone": "America/New_York"}
    target = {"type": "queue", "queue": "q"}
    with Client(url) as client:
        client.create_job({"name": "far", "trigger": rule, "target": target})
        client.create_job({"name": "farther", "trigger": {"type": "any_of", "triggers": [rule]}, "target": target})
    for name in ("far", "farther"):
        told = json.loads(call("job", "explain", name, "--at", "2035-01-10T02:30", "--json").stdout)
        assert (told["at"], told["fires"]) == ("2035-01-10T07:30:00Z", True)
    assert json.loads(call("job", "explain", "far", "--at", "2035-01-10T02:30Z", "--json").stdout)["fires"] is False
