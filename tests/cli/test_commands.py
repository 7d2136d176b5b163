"""The management commands against a whole server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from horarium.cli.job_files import ERRORS_SHOWN_MAX
from tests.servers.live import live_server

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.fixture
def call(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command with these arguments; it must end with this status."""
    monkeypatch.setenv("HORARIUM_URL", url)

    def run(*args: str, status: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=stdin)
        assert result.exit_code == status, (result.output, result.stderr)
        return result

    return run


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


ALL_KINDS_OF_FLAGS = """
job add nightly --cron @daily --timezone Europe/Berlin
--http https://example.com/report --method put --header X-A:1 --body {}
--attempts 5 --backoff 10s --label team=a --priority 3 --jitter 1m --fires-max 9 --concurrency db=2
--overlap skip --catch-up none --execution-timeout 5m --keep 2d --disabled --title Every_night --buffer-max 4 --json
"""


def test_a_job_is_added_with_flags(call: Call) -> None:
    job = as_json(call(*ALL_KINDS_OF_FLAGS.split()))
    assert (job["trigger"]["type"], job["trigger"]["timezone"]) == ("cron", "Europe/Berlin")
    assert job["target"]["method"] == "PUT"
    assert (job["retry"]["attempts_max"], job["retry"]["backoff_seconds"]) == (5, 10.0)
    assert (job["labels"], job["priority"], job["jitter_seconds"]) == ({"team": "a"}, 3, 60.0)
    assert (job["fires_max"], job["concurrency"], job["overlap"]) == (9, {"key": "db", "max": 2}, "skip")
    assert (job["title"], job["buffer_max"]) == ("Every_night", 4)
    assert "Every_night" in call("job", "list").stdout
    assert (job["catch_up"], job["enabled"]) == ({"policy": "none", "window_seconds": None}, False)


def test_what_was_understood_is_said(call: Call) -> None:
    assert call("job", "add", "said", "--every", "5m", "--queue", "q").stdout.startswith("Job said: every 5 minutes")


COMMAND: dict[str, Any] = {
    "type": "command", "queue": "shell", "env": {}, "cwd": None, "user": None, "stdin": None, "timeout_seconds": None,
    "success_codes": [0], "discard_codes": [126, 127],
}  # fmt: skip


def test_what_stands_after_two_dashes_is_a_command(call: Call) -> None:
    job = as_json(call("job", "add", "dump", "--cron", "@daily", "--json", "--", "pg_dump", "-Fc", "--json", "a b"))
    assert job["target"] == {
        **COMMAND, "command": ["pg_dump", "-Fc", "--json", "a b"]
    }  # fmt: skip
    args = ("--queue", "q", "--env", "A=1", "--env", "B= x", "--cwd", "/srv", "--stdin", "y\n", "--json", "--", "ls")
    job = as_json(call("job", "update", "dump", *args))
    given = {"command": ["ls"], "queue": "q", "env": {"A": "1", "B": " x"}, "cwd": "/srv", "stdin": "y\n"}
    assert job["target"] == {**COMMAND, **given}


def test_a_name_that_is_taken_fails_unless_it_is_replaced(call: Call) -> None:
    call("job", "add", "taken", "--every", "5m", "--queue", "q")
    refused = call("job", "add", "taken", "--every", "6m", "--queue", "q", status=1)
    assert refused.stderr.startswith("Error: job 'taken' exists already; add --replace")
    call("job", "add", "taken", "--every", "6m", "--queue", "q", "--replace")


def test_a_job_is_added_from_a_file_or_the_standard_input(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: file\ntrigger: {type: cron, expression: '0 3 * * *'}\ntarget: {type: queue, queue: q}\n")
    assert as_json(call("job", "add", "--file", str(file), "--json"))["name"] == "file"
    text = '{"name": "x", "trigger": {"type": "once", "at": "2100-01-01T00:00:00Z"}, "target": {"type": "bus"}}'
    assert as_json(call("job", "add", "stdin", "--file", "-", "--json", stdin=text))["name"] == "stdin"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["job", "add"], "NAME is missing"),
        (["job", "add", "x"], "a trigger is missing: give one of --cron"),
        (["job", "add", "x", "--every", "5m"], "a target is missing: give one of --http"),
        (["job", "add", "x", "--every", "5x", "--queue", "q"], "'5x' is not a duration"),
        (["job", "add", "x", "--every", "5m", "--http", "http://x", "--", "ls"], "a command after -- is for a queue"),
        (["job", "add", "x", "--every", "5m", "--payload", "1", "--", "ls"], "not both"),
        (["job", "add", "x", "--every", "5m", "--cwd", "/"], "--cwd belongs to a command; give it after --"),
        (["job", "add", "x", "ls", "--every", "5m"], "unexpected extra argument (ls)"),
        (["job", "add", "x", "--queue", "q", "--payload", "{"], "'{' is not JSON"),
        (["job", "add", "--file", "/none.yaml"], "/none.yaml can't be read: No such file"),
        (["job", "update", "x"], "nothing to change"),
        (["job", "frob"], "There is no command 'frob'; known are add,"),
        (["job", "lst"], "did you mean 'list'? Try: horarium job --help"),
        (["run", "list", "--since", "yesterday"], "'yesterday' is no instant"),
        (["run", "list", "--state", "lost"], "'lost' is not one of 'pending'"),
        (["job", "list", "--url", "ftp://x"], "no server's address"),
        (["preview"], "give TRIGGER, or one of --rrule"),
        (["preview", "5m", "--cron", "@daily"], "give TRIGGER or a trigger flag, not both"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_sentence(call: Call, args: list[str], words: str) -> None:
    result = call(*args, status=2)
    assert words in result.stderr
    assert (result.stdout, result.stderr.count("\n"), "Traceback" in result.stderr) == ("", 1, False)


def test_with_json_an_error_is_a_problem_on_stderr(call: Call) -> None:
    result = call("job", "show", "nobody", "--json", status=1)
    problem = json.loads(result.stderr)
    assert (problem["code"], problem["detail"]) == ("not_found", "there is no job named 'nobody'")
    assert json.loads(call("job", "--json", status=2).stderr)["code"] == "usage"


def test_a_server_that_does_not_answer_is_named_with_what_to_do(call: Call) -> None:
    result = call("job", "list", "--url", "http://127.0.0.1:9", status=1)
    assert "no answer from http://127.0.0.1:9: the connection was refused; start a server with" in result.stderr


def test_jobs_are_listed_for_people_and_for_programs(call: Call) -> None:
    for name in ("list-a", "list-b"):
        call("job", "add", name, "--every", "5m", "--queue", "q", "--label", "list=1")
    call("job", "pause", "list-b", "--reason", "why not")
    lines = call("job", "list", "--label", "list=1").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "LAST", "NEXT_FIRE_AT", "TRIGGER", "TARGET"]
    assert [line.split()[:2] for line in lines[1:]] == [["list-a", "enabled"], ["list-b", "paused"]]
    assert [job["name"] for job in as_json(call("job", "list", "--prefix", "list-", "--paused", "--json"))] == [
        "list-b"
    ]
    assert as_json(call("job", "list", "--label", "list=2", "--json")) == []
    assert len(as_json(call("job", "list", "--limit", "1", "--json"))) == 1


def test_a_job_is_updated_field_by_field(call: Call) -> None:
    call("job", "add", "up", "--every", "5m", "--http", "https://x.example", "--header", "A:1", "--label", "a=1")
    call("job", "update", "up", "--label", "b=2", "--remove-label", "a", "--attempts", "7", "--method", "get")
    job = as_json(call("job", "show", "up", "--json"))
    assert (job["labels"], job["retry"]["attempts_max"], job["target"]["method"]) == ({"b": "2"}, 7, "GET")
    assert job["target"]["headers"] == {"A": "1"}
    call("job", "update", "up", "--queue", "q", "--cron", "@daily")
    job = as_json(call("job", "show", "up", "--json"))
    assert job["target"] == {"type": "queue", "queue": "q", "payload": None}
    assert job["trigger"]["type"] == "cron"
    call("job", "update", "up", "--disabled")
    assert "state" in call("job", "show", "up").stdout


def test_a_job_is_paused_resumed_previewed_and_deleted(call: Call) -> None:
    call("job", "add", "life", "--every", "1h", "--queue", "life")
    assert call("job", "pause", "life").stdout == "Job life is paused.\n"
    assert "never" in call("job", "preview", "life").stdout
    assert call("job", "resume", "life").stdout.startswith("Job life is enabled; it fires next at 2")
    assert len(as_json(call("job", "preview", "life", "--count", "3", "--json"))["fires"]) == 3
    assert call("job", "backfill", "life", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z").stdout == "0 runs made.\n"
    assert as_json(call("job", "delete", "life", "--json")) == {"deleted": "life"}
    assert call("job", "delete", "life", status=1).stderr == "Error: there is no job named 'life'\n"


def test_a_backfill_goes_on_until_nothing_is_left(call: Call, url: str) -> None:
    call("job", "add", "past", "--cron", "* * * * * *", "--queue", "past")
    day = ("2026-01-01T00:00:00Z", "2026-01-01T00:41:40Z")
    assert call("job", "backfill", "past", *day).stdout == "2,500 runs made.\n"
    runs = as_json(call("job", "backfill", "past", *day, "--json"))
    assert len({run["fire_at"] for run in runs}) == 2500


def test_a_backfill_keeps_its_pace(call: Call) -> None:
    call("job", "add", "paced", "--cron", "* * * * * *", "--queue", "paced")
    begun = time.monotonic()
    span = ("2026-01-01T00:00:00Z", "2026-01-01T00:20:00Z")
    assert call("job", "backfill", "paced", *span, "--per-second", "2000").stdout == "1,200 runs made.\n"
    assert time.monotonic() - begun >= 0.5


def test_a_backfill_that_is_interrupted_says_where_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("job", "add", "cut", "--cron", "* * * * * *", "--queue", "cut")
    pauses = []

    def interrupted(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 1:
            raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=interrupted, monotonic=time.monotonic)  # the server of this test sleeps, too
    monkeypatch.setattr("horarium.cli.job_backfill.time", clock)
    said = call("job", "backfill", "cut", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", status=130).stderr
    assert (
        "1,000 runs were made; go on with: horarium job backfill cut 2026-01-01T00:16:39.000001Z 2026-01-01T01:00"
        in said
    )


def test_jobs_are_paused_resumed_and_deleted_by_label(call: Call) -> None:
    for name, team in (("lab-a", "red"), ("lab-b", "red"), ("lab-c", "blue")):
        call("job", "add", name, "--every", "1h", "--queue", "q", "--label", f"team={team}")
    red = ("--label", "team=red")
    assert call("job", "pause", *red).stdout == "Job lab-a is paused.\nJob lab-b is paused.\n"
    assert [job["enabled"] for job in as_json(call("job", "list", "--prefix", "lab-", "--json"))] == [
        False,
        False,
        True,
    ]
    assert [job["name"] for job in as_json(call("job", "resume", *red, "--json"))] == ["lab-a", "lab-b"]
    assert as_json(call("job", "delete", *red, "--json")) == {"deleted": ["lab-a", "lab-b"]}
    assert call("job", "delete", *red).stdout == "There are no such jobs.\n"
    assert [job["name"] for job in as_json(call("job", "list", "--label", "team=blue", "--json"))] == ["lab-c"]
    for args in ((), ("lab-c", "--label", "team=blue")):
        assert "give the NAME of a job, or --label" in call("job", "delete", *args, status=2).stderr
    assert "NAME=VALUE" in call("job", "delete", "--label", "team", status=2).stderr
    call("job", "delete", "lab-c")


def test_runs_are_made_shown_cancelled_and_retried(call: Call) -> None:
    call("job", "add", "runs", "--every", "1h", "--queue", "runs")
    once = ("job", "trigger", "runs", "--payload", '{"a": 1}', "--key", "k1", "--json")
    run = as_json(call(*once))
    assert as_json(call(*once))["id"] == run["id"]
    shown = call("run", "show", run["id"]).stdout
    assert '{"a":1}' in shown
    assert "planned (manual)" in shown
    assert call("run", "cancel", run["id"]).stdout == f"Run {run['id']} is cancelled.\n"
    assert "takes over" in call("run", "retry", run["id"]).stdout
    states = [found["state"] for found in as_json(call("run", "list", "--job", "runs", "--since", "1h", "--json"))]
    assert sorted(states) == ["cancelled", "pending"]
    assert as_json(call("run", "list", "--job", "runs", "--state", "failed", "--until", "1h", "--json")) == []
    assert call("run", "cancel", run["id"], status=1).stderr.startswith("Error: ")


def test_a_run_by_hand_says_why_it_waits(call: Call) -> None:
    call("job", "add", "asked", "--every", "1h", "--queue", "asked")
    assert re.fullmatch(r"Run \S+ is pending\.\n", call("job", "trigger", "asked").stdout)
    hold = as_json(call("hold", "add", "--job", "asked", "--for", "2h", "--reason", "maintenance", "--json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", hold["until"]), "of whole seconds, for those who read it"
    waits = f"waits until {hold['until']}: held by {hold['id']}: maintenance"
    assert waits in call("job", "trigger", "asked").stdout
    call("hold", "lift", hold["id"])


JOBS = """
jobs:
  - name: imp-a
    trigger: {type: cron, expression: "0 3 * * *", timezone: Europe/Berlin}
    target: {type: queue, queue: q, payload: {at: 2025-01-01}}
    enabled: false
  - name: imp-b
    trigger: {type: once, at: 2100-01-01T09:34:00Z}
    target: {type: http, url: "https://x.example", signing_secret: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}
    labels: {no: "no"}
"""


def test_importing_twice_changes_nothing_and_an_export_can_be_imported(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    assert call("job", "import", str(file)).stdout == "2 created, 0 updated, 0 unchanged, 0 failed.\n"
    before = as_json(call("job", "list", "--prefix", "imp-", "--json"))
    assert as_json(call("job", "import", str(file), "--json"))["unchanged"] == 2
    assert as_json(call("job", "list", "--prefix", "imp-", "--json")) == before
    exported = tmp_path / "export.yaml"
    call("job", "export", "imp-a", "imp-b", "--output", str(exported))
    assert "MDEyMzQ1" not in exported.read_text()
    assert call("job", "import", str(exported)).stdout == "0 created, 0 updated, 2 unchanged, 0 failed.\n"
    as_text = call("job", "export", "imp-a", "--format", "json").stdout
    assert call("job", "import", "-", stdin=as_text).stdout == "0 created, 0 updated, 1 unchanged, 0 failed.\n"
    file.write_text(JOBS.replace("0 3 * * *", "0 4 * * *"))
    assert as_json(call("job", "import", str(file), "--json"))["updated"] == 1


def test_a_masked_secret_makes_no_new_job(call: Call) -> None:
    job = {"name": "masked", "trigger": {"type": "interval", "every_seconds": 60}}
    job["target"] = {"type": "http", "url": "https://x.example", "signing_secret": "********"}
    result = call("job", "import", "-", stdin=json.dumps(job), status=1)
    assert "target.signing_secret: it is masked" in result.stderr


def test_a_job_that_is_refused_is_named_and_the_others_are_imported(call: Call) -> None:
    good = {"name": "good", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "bus"}}
    bad = [{**good, "name": f"bad-{number}", "trigger": {"type": "nope"}} for number in range(ERRORS_SHOWN_MAX + 1)]
    result = call("job", "import", "-", stdin=json.dumps([*bad, {"trigger": 1}, good]), status=1)
    assert result.stdout == f"1 created, 0 updated, 0 unchanged, {len(bad) + 1} failed.\n"
    assert "Error: bad-0: " in result.stderr
    assert "... and 2 more errors" in result.stderr


def test_a_crontab_is_imported(call: Call) -> None:
    text = "TZ=Europe/Berlin\n0 3 * * * /usr/bin/backup\n"
    assert call("job", "import", "-", "--queue", "shell", "--prefix", "tab.", stdin=text).stdout.startswith("1 created")
    (job,) = as_json(call("job", "list", "--prefix", "tab.", "--json"))
    assert job["target"] == {**COMMAND, "command": ["/bin/sh", "-c", "/usr/bin/backup"]}
    assert call("job", "import", "-", stdin="@reboot x", status=1).stderr.startswith("Error: the standard input:1:")


def test_a_file_that_is_none_says_where(call: Call) -> None:
    assert "put a cron expression in quotes" in call("job", "import", "-", stdin="cron: *x", status=1).stderr
    assert "not JSON" in call("job", "import", "-", stdin="{", status=1).stderr
    assert "job 1 is no mapping" in call("job", "import", "-", "--format", "yaml", stdin="- 1", status=1).stderr


def test_a_preview_needs_no_server(call: Call) -> None:
    args = ("--after", "2026-01-01T00:00:00Z", "--count", "2", "--json")
    found = as_json(call("preview", "0 3 * * *", "--timezone", "Europe/Berlin", *args))
    assert found["fires"] == ["2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z"]
    found = as_json(call("preview", "--rrule", "FREQ=MONTHLY;BYDAY=-1FR", *args))
    assert len(found["fires"]) == 2
    lines = call("preview", "every other tuesday at 9:34am", *args[:-1]).stdout.splitlines()
    assert len(lines) == 3
    assert "never" in call("preview", "2020-01-01T00:00:00Z").stdout
    assert call("preview", "every sunshine", status=1).stderr.startswith("Error: ")
    quartz = ("preview", "--cron", "0 0 3 ? * 2-6", "--after", "2027-01-01T00:00:00Z", "--json")
    assert as_json(call(*quartz))["warnings"][0].startswith("day 2 of the week is Tuesday here")
    translated = as_json(call(*quartz, "--dialect", "quartz"))
    assert (translated["fires"][0], "warnings" in translated) == ("2027-01-01T03:00:00Z", False)
    plain = as_json(call("preview", "0 0 3 ? * 2-6", "--dialect", "quartz", *quartz[3:]))
    assert plain == translated, "what the warning says to add is added to that very command"
    aws = "cron(0 3 ? * 2-6 *)"
    assert f"--cron '{aws}' --dialect eventbridge" in call("preview", aws, status=2).stderr
    assert as_json(call("preview", "--cron", aws, "--dialect", "eventbridge", *quartz[3:]))["fires"] == plain["fires"]
    assert "give --every 5m" in call("preview", "rate(5 minutes)", status=2).stderr
    assert "--dialect belongs to --cron" in call("preview", "--every", "5m", "--dialect", "quartz", status=2).stderr


def test_upcoming_fire_times_of_all_jobs(call: Call) -> None:
    call("job", "add", "up-next", "--every", "1s", "--queue", "up")
    found = as_json(call("upcoming", "--until", "1h", "--limit", "30", "--json"))
    assert (len(found["items"]), found["truncated"]) == (30, True)
    moments = [datetime.fromisoformat(each["fire_at"]) for each in found["items"]]
    assert moments == sorted(moments)
    shown = call("upcoming", "--limit", "30")
    assert "up-next" in shown.stdout
    assert "There are more" in shown.stderr


# ---- one-off runs, and many runs at once


def test_a_run_is_added_with_flags(call: Call) -> None:
    added = call("run", "add", "--queue", "add", "--payload", '{"n": 1}', "--delay", "5m", "--key", "add-1")
    assert re.fullmatch(r"Run [0-9a-f-]{36} is pending, due \S+ \(in 5 min\b.*\)\.\n", added.stdout)
    same = call("run", "add", "--queue", "add", "--key", "add-1").stdout
    assert "holds that key; it is pending" in same
    flags = (
        "--attempts",
        "2",
        "--priority",
        "3",
        "--concurrency",
        "db=2",
        "--keep",
        "1d",
        "--label",
        "team=a",
        "--json",
    )
    run = as_json(call("run", "add", "--http", "https://example.com/x", "--at", "2099-01-01T00:00:00Z", *flags))
    assert (run["queue"], run["due_at"], run["priority"], run["labels"]) == (
        "http", "2099-01-01T00:00:00Z", 3, {"team": "a"},
    )  # fmt: skip
    edit = ("run", "add", "--queue", "add", "--debounce", "page-7=30s", "--debounce-max", "5m", "--json")
    assert [as_json(call(*edit))["outcome"] for _ in range(2)] == ["created", "debounced"]
    once = ("run", "add", "--queue", "add", "--unique", "u", "--unique-until", "finished", "--replace")
    assert "is pending, due" in call(*once).stdout
    assert "holds that key; it is pending, due" in call(*once).stdout
    over = as_json(call("run", "cancel", run["id"], "--json"))
    again = as_json(call("run", "retry", over["id"], "--payload", "[1]", "--json"))
    assert (again["payload"], again["state"]) == ([1], "pending")
    command = as_json(call("run", "add", "--json", "--", "ls", "-l"))
    assert (command["queue"], command["payload"]) == ("pull/shell", None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("add",), "a target is missing"),
        (("add", "--queue", "q", "--at", "2099-01-01T00:00:00Z", "--delay", "1s"), "give --at or --delay, not both"),
        (("retry",), "give the ID of a run, or a filter"),
        (("add", "--queue", "q", "--replace"), "go with --unique KEY"),
        (("add", "--queue", "q", "--debounce-max", "1m"), "goes with --debounce"),
        (("add", "--queue", "q", "--debounce", "5s"), "give KEY=DURATION"),
        (("retry", "--job", "a", "--payload", "1"), "--payload goes with the ID of a run"),
        (("cancel", "--dry-run"), "give the ID of a run, or a filter"),
        (("cancel", "0196f0c2-7633", "--job", "a"), "give the ID of a run or --job, not both"),
    ],
)
def test_what_is_wrong_with_a_command_on_runs_is_said(call: Call, args: tuple[str, ...], message: str) -> None:
    result = call("run", *args, status=2)
    assert message in result.stderr


def test_many_runs_are_counted_cancelled_and_retried(call: Call) -> None:
    for number in range(3):
        call("run", "add", "--queue", "many", "--payload", str(number))
    counted = call("run", "cancel", "--queue", "many", "--dry-run")
    assert counted.stdout == "3 runs match.\n"
    done = call("run", "cancel", "--queue", "many", "--reason", "not now", "--per-second", "1000")
    assert (done.stderr, done.stdout) == ("3 runs match.\n", "3 runs cancelled.\n")
    again = call(
        "run", "retry", "--queue", "many", "--state", "cancelled", "--since", "1h", "--error-contains", "not n"
    )
    assert again.stdout == "3 runs retried.\n"
    call("run", "add", "--queue", "one")
    alone = call("run", "cancel", "--queue", "one")
    assert (alone.stderr, alone.stdout) == ("1 run matches.\n", "1 run cancelled.\n")
    call("run", "retry", "--queue", "one", "--state", "cancelled")
    over = call("run", "retry", "--queue", "one", "--state", "cancelled")
    assert over.stdout == "0 runs retried. 1 was retried before.\n"
    once = call("run", "retry", "--queue", "many", "--state", "cancelled")
    assert once.stdout == "0 runs retried. 3 were retried before.\n"
    assert as_json(call("run", "cancel", "--queue", "many", "--json")) == {"matched": 3, "done": 3, "left": {}}
