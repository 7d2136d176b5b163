"""`horarium job import`: many jobs, in every format, with their places; and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from horarium.cli.crontab import AT_ONCE_MAX, START_SECONDS, program_of
from horarium.cli.documents import read_entries
from horarium.cli.job_files import HERD_JOBS
from horarium.client import Client
from horarium.client.api import IMPORT_MAX
from horarium.errors import InvalidJob
from horarium.model import Occasion
from tests.blackbox.outside import environment
from tests.servers.live import live_server
from tests.waiting import PATIENCE

Call = Callable[..., Result]
EVERY_MINUTE = {"type": "interval", "every_seconds": 60}


def a_job(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "trigger": EVERY_MINUTE, "target": {"type": "queue", "queue": "q"}, **fields}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.fixture
def load(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """An import with these arguments; it must end with this status."""
    monkeypatch.setenv("HORARIUM_URL", url)

    def run(text: str, *args: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["job", "import", "-", *args], input=text)
        assert result.exit_code == status, (result.output, result.stderr)
        return result

    return run


def counts(result: Result) -> tuple[int, ...]:
    found = json.loads(result.stdout)
    return tuple(found[name] for name in ("created", "updated", "unchanged", "failed"))


@pytest.mark.slow
def test_more_jobs_than_one_request_takes_are_imported_and_spread(load: Call, url: str) -> None:
    jobs = [a_job(f"many-{number}") for number in range(2 * IMPORT_MAX + 1)]
    text = json.dumps(jobs)
    assert counts(load(text, "--json")) == (len(jobs), 0, 0, 0)
    with Client(url) as client:
        before = {job.name: job for job in client.list_jobs(prefix="many-")}
        fires = Counter(job.next_fire_at.second for job in before.values() if job.next_fire_at)
        assert set(fires) == set(range(60))
        assert max(fires.values()) < 1.6 * len(jobs) / 60
        assert counts(load(text, "--json")) == (0, 0, len(jobs), 0)
        for job in client.list_jobs(prefix="many-"):
            assert (job.version, job.updated_at) == (before[job.name].version, before[job.name].updated_at) or (
                job.fires_count > before[job.name].fires_count
            )


def test_a_large_job_goes_in_a_request_of_its_own(load: Call) -> None:
    jobs = [a_job(f"large-{n}", target={"type": "queue", "queue": "q", "payload": "x" * 250_000}) for n in range(9)]
    assert counts(load(json.dumps(jobs), "--json")) == (9, 0, 0, 0)


def test_what_can_not_be_read_by_the_server_keeps_nothing_else_out(load: Call) -> None:
    nul = a_job("nul", labels={"a": "\0"})
    huge = a_job("huge", target={"type": "queue", "queue": "q", "payload": "x" * 2_000_000})
    text = json.dumps([a_job("odd-1"), nul, a_job("odd-2"), huge, a_job("odd-3")])
    result = load(text, "--json", status=1)
    assert counts(result) == (3, 0, 0, 2)
    errors = {error["job"]: error["error"] for error in json.loads(result.stdout)["errors"]}
    assert "NUL" in errors["nul"]
    assert "larger than" in errors["huge"]


def test_a_dry_run_checks_all_and_writes_nothing(load: Call, url: str) -> None:
    text = json.dumps([a_job("dry"), a_job("bad", trigger={"type": "cron", "expression": "61 * * * *"})])
    result = load(text, "--dry-run", status=1)
    said = "  created  dry\nNothing was written. It would be: 1 created, 0 updated, 0 unchanged, 1 failed.\n"
    assert result.stdout == said
    assert "Error: bad: " in result.stderr
    with Client(url) as client:
        assert list(client.list_jobs(prefix="dry")) == []


YAML = """
# a comment
jobs:
  - name: first
    trigger: {type: interval, every_seconds: 60}
    target: {type: queue, queue: q}

  - name: second
    trigger: {type: cron, expression: "x"}
    target: {type: queue, queue: q}
  - just a text
"""


def test_an_error_names_the_line_of_its_job(load: Call) -> None:
    result = load(YAML, "--format", "yaml", status=1)
    assert result.stdout == "1 created, 0 updated, 0 unchanged, 2 failed.\n"
    assert "(the standard input:8)" in result.stderr
    assert "job 3 is no mapping" in result.stderr
    text = '[\n{"name": "one", "x": 1},\n\n{"name": "two", "x": 1}\n]'
    errors = json.loads(load(text, "--json", status=1).stdout)["errors"]
    assert [error["place"] for error in errors] == ["the standard input:2", "the standard input:4"]


def test_a_name_that_stands_twice_is_refused_the_second_time_each_time(load: Call) -> None:
    text = json.dumps([a_job("twice"), a_job("twice", priority=1)])
    assert counts(load(text, "--json", status=1)) == (1, 0, 0, 1)
    again = load(text, status=1)
    assert again.stdout == "0 created, 0 updated, 1 unchanged, 1 failed.\n"
    assert "Error: twice: there is a job of this name already, at the standard input:1" in again.stderr


CRONTAB = """\
MAILTO=ops@example.com
CRON_TZ=Europe/Berlin
0 3 * * * /usr/bin/backup --all
@reboot /usr/bin/hello
*/61 * * * * /usr/bin/wrong
not a line
"""


def test_a_crontab_is_imported_line_by_line(load: Call, url: str) -> None:
    result = load(CRONTAB, "--format", "crontab", "--prefix", "host1.", status=1)
    assert result.stdout == "1 created, 0 updated, 0 unchanged, 3 failed.\n"
    for words in ("the standard input:4: @reboot has", "(the standard input:5)", "the standard input:6: 'not a line'"):
        assert words in result.stderr
    assert "Note: MAILTO: no mail is sent" in result.stderr
    with Client(url) as client:
        (job,) = client.list_jobs(prefix="host1.")
    assert (job.name.startswith("host1.backup-"), job.trigger["timezone"]) == (True, "Europe/Berlin")
    assert load(CRONTAB, "--format", "crontab", "--prefix", "host1.", status=1).stdout.startswith(
        "0 created, 0 updated, 1 unchanged"
    )


@pytest.mark.parametrize(
    "text",
    [
        "17 * * * * root cd / && run-parts --report /etc/cron.hourly\n",
        "# m h dom mon dow user  command\n17 * * * * nosuchuser cd / && run-parts --report /etc/cron.hourly\n",
    ],
)
def test_a_copy_of_a_system_crontab_is_recognised(load: Call, url: str, text: str) -> None:
    """`root cd / && ...` was taken for the command."""
    assert counts(load(text, "--format", "crontab", "--source", "web1", "--json")) == (1, 0, 0, 0)
    with Client(url) as client:
        (job,) = client.list_jobs(labels={"crontab-source": "web1"})
        client.delete_job(job.name)
    assert job.name.startswith("web1-run-parts-")
    target = msgspec.to_builtins(job.target)
    assert list(target["command"]) == ["/bin/sh", "-c", "cd / && run-parts --report /etc/cron.hourly"]
    assert target["user"] in ("root", "nosuchuser")


def test_a_line_that_was_edited_takes_its_job_along(load: Call, url: str) -> None:
    source = ("--format", "crontab", "--source", "web2", "--json")
    load("0 3 * * * /opt/backup --all\n5 4 * * * /opt/rotate\n", *source)
    again = json.loads(load("0 3 * * * /opt/backup --all --fast\n5 5 * * * /opt/rotate\n", *source).stdout)
    assert (again["created"], again["updated"], len(again["deleted"])) == (1, 1, 1)
    with Client(url) as client:
        jobs = list(client.list_jobs(labels={"crontab-source": "web2"}))
    assert sorted(job.name.rpartition("-")[0] for job in jobs) == ["web2-backup", "web2-rotate"]
    assert "say --allow-empty" in load("# nothing\n", *source, status=2).stderr


def test_a_job_of_a_crontab_means_what_its_line_meant_to_cron(
    load: Call, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    text = "30 2 * * 1-5 PGPASSWORD=geheim pg_dump -U app --password=s3cret app > /tmp/app.sql\n"
    shown = json.loads(load(text, "--format", "crontab", "--prefix", "c.", "--json").stdout)
    assert shown["notes"] == ["times are those of Europe/Berlin, the zone of this machine; --timezone names another"]
    with Client(url) as client:
        (job,) = client.list_jobs(prefix="c.")
    assert job.name.startswith("c.pg-dump-")
    assert "geheim" not in job.name
    assert "s3cret" not in job.name
    assert job.trigger == {"type": "cron", "expression": "30 2 * * 1-5", "timezone": "Europe/Berlin"}
    assert (job.overlap, job.retry.attempts_max, job.catch_up.policy) == ("allow", 1, "none")
    assert job.timeouts.start_seconds == START_SECONDS
    assert job.concurrency is not None
    assert job.concurrency.max == AT_ONCE_MAX


def test_mailto_becomes_a_channel_that_is_told_of_failures(load: Call, url: str) -> None:
    text = 'MAILTO=ops@example.com, dev@example.com\n0 1 * * * /opt/told\nMAILTO=""\n0 2 * * * /opt/quiet\n'
    load(text, "--format", "crontab", "--prefix", "m.", "--mailto", "--json")
    with Client(url) as client:
        told = {job.name[2:].partition("-")[0]: job.on for job in client.list_jobs(prefix="m.")}
        (channel,) = (each for each in client.channels.list() if each["name"].startswith("mailto-"))
    assert told["quiet"] == {}
    assert [each.notify for each in told["told"][Occasion.FAILED]] == [channel["name"]]
    assert channel["to"] == ["dev@example.com", "ops@example.com"]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/usr/bin/backup --all", "backup"),
        ("cd /srv/app && ./manage.py clearsessions", "manage-py"),
        ("[ -x /usr/sbin/anacron ] || run-parts /etc/cron.daily", "run-parts"),
        ("A=1 B='x y' nice -n 19 ionice -c3 /opt/x.sh", "x-sh"),
        ("sudo -u www php artisan schedule:run >> /dev/null 2>&1", "php"),
        ("(cd /tmp; ls)", "cd"),
        ("$HOME/bin/daily.job", "daily-job"),
        (">/dev/null true", "null"),
        ("", "command"),
        ("'", "command"),
    ],
)
def test_a_command_is_named_after_its_program(command: str, program: str) -> None:
    assert program_of(command) == program


@pytest.mark.slow
def test_many_jobs_of_one_instant_are_worth_a_word(load: Call) -> None:
    hourly = {"type": "cron", "expression": "0 * * * *"}
    jobs = [a_job(f"herd-{number}", trigger=hourly) for number in range(HERD_JOBS)]
    assert f"Note: {HERD_JOBS} jobs fire at the same instants (0 * * * *, UTC)" in load(json.dumps(jobs)).stderr
    spread = [{**job, "jitter_seconds": 60} for job in jobs]
    assert json.loads(load(json.dumps(spread), "--json").stdout)["notes"] == []
    assert load(json.dumps(jobs[1:])).stderr == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "a"}', ["a"]),
        ('{"name": "a"}\n{"name": "b"}\n', ["a", "b"]),
        (' [ {"name": "a"} , {"name": "b"} ] ', ["a", "b"]),
        ("[]", []),
        ('{"jobs": [{"name": "a"}, {"name": "b"}]}', ["a", "b"]),
    ],
)
def test_json_holds_one_job_a_list_or_one_a_line(tmp_path: Path, text: str, names: list[str]) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(text)
    assert [entry.name for entry in read_entries(str(file))] == names


@pytest.mark.parametrize("text", ["", "[", "[{}", "[{},]", '[{"a": 1} {"b": 2}]', "[{}] x", "{", '{"a": }', "[{},,{}]"])
def test_a_file_that_is_no_json_is_refused_as_a_whole(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(text)
    with pytest.raises(InvalidJob, match="not JSON"):
        read_entries(str(file))


def test_an_export_may_be_kept_under_a_name_that_says_json(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text("- name: a\n  trigger: {type: interval, every_seconds: 60}\n  target: {type: queue, queue: q}\n")
    (entry,) = read_entries(str(file))
    assert (entry.name, entry.error) == ("a", None)


@pytest.mark.slow
def test_on_a_terminal_a_bar_shows_how_far_it_is(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([a_job(f"bar-{number}") for number in range(3)]))
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "horarium", "job", "import", str(file), "--url", url]
    with open(ours, "rb", closefd=True, buffering=0) as screen:
        env = environment({"TERM": "xterm", "COLUMNS": "80"})
        done = subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, timeout=PATIENCE, check=True, env=env)
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = screen.read(4096)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
    assert b"Importing" in shown
    assert b"3/3" in shown
    assert done.stdout == b"3 created, 0 updated, 0 unchanged, 0 failed.\n"


def test_jobs_that_left_the_file_are_shown_and_then_deleted(load: Call, url: str) -> None:
    both = json.dumps([a_job("pruned-a"), a_job("pruned-b")])
    load(both, "--label", "app=pruned")
    one = json.dumps([a_job("pruned-a")])
    shown = load(one, "--label", "app=pruned", "--prune", "--dry-run").stdout
    assert "  deleted  pruned-b\n" in shown
    with Client(url) as client:
        assert {job.name for job in client.list_jobs(labels={"app": "pruned"})} == {"pruned-a", "pruned-b"}
        found = json.loads(load(one, "--label", "app=pruned", "--prune", "--json").stdout)
        assert found["deleted"] == ["pruned-b"]
        assert {job.name for job in client.list_jobs(labels={"app": "pruned"})} == {"pruned-a"}


def test_a_job_of_another_label_is_taken_over_only_if_that_is_said(load: Call, url: str) -> None:
    load(json.dumps([a_job("theirs"), a_job("free")]), "--label", "team=ops")
    with Client(url) as client:
        client.patch_job("free", {"labels": {"team": None}})
    both = json.dumps([a_job("theirs", priority=3), a_job("free")])
    refused = load(both, "--label", "team=billing", "--json", status=1)
    assert counts(refused) == (0, 1, 0, 1)
    assert "is a job of team=ops" in json.loads(refused.stdout)["errors"][0]["error"]
    assert counts(load(both, "--label", "team=billing", "--take-over", "--json")) == (0, 1, 1, 0)
    with Client(url) as client:
        assert (client.get_job("theirs").labels, client.get_job("theirs").priority) == ({"team": "billing"}, 3)


def test_nothing_is_pruned_while_the_file_has_an_error(load: Call, url: str) -> None:
    load(json.dumps([a_job("safe-a"), a_job("safe-b")]), "--label", "app=safe")
    broken = json.dumps([a_job("safe-a"), {"name": "safe-b"}])
    result = load(broken, "--label", "app=safe", "--prune", status=1)
    assert "no job was deleted" in result.stderr
    with Client(url) as client:
        assert len(list(client.list_jobs(labels={"app": "safe"}))) == 2


@pytest.mark.parametrize("content", ["", "\n", "jobs: []", "[]", '{"jobs": [], "jbos": []}', "jobs: {a: 1}"])
def test_a_file_without_jobs_deletes_none(load: Call, url: str, content: str) -> None:
    """`false | horarium job import - --prune` deleted every job of the label."""
    load(json.dumps([a_job("kept-a"), a_job("kept-b")]), "--label", "app=kept")
    refused = load(content, "--label", "app=kept", "--prune", status=2 if content in ("jobs: []", "[]") else 1)
    assert refused.stdout == ""
    with Client(url) as client:
        assert len(list(client.list_jobs(labels={"app": "kept"}))) == 2


def test_an_empty_file_deletes_all_if_that_is_said_and_each_job_can_be_made_again(load: Call, url: str) -> None:
    secret = {"type": "http", "url": "https://example.com/", "headers": {"Authorization": "Bearer s3cret"}}
    load(json.dumps([a_job("back", target=secret), a_job("gone")]), "--label", "app=all")
    done = load("jobs: []", "--label", "app=all", "--prune", "--allow-empty")
    assert "2 of 2 jobs with app=all were deleted; `horarium job revert NAME` makes one again." in done.stdout
    assert "--allow-empty belongs to --prune" in load("jobs: []", "--allow-empty", status=2).stderr
    shown = CliRunner().invoke(cli, ["job", "versions", "back", "--json"])
    assert [each["definition"]["name"] for each in json.loads(shown.stdout)] == ["back"]
    assert CliRunner().invoke(cli, ["job", "revert", "back"]).exit_code == 0
    with Client(url) as client:
        assert [job.name for job in client.list_jobs(labels={"app": "all"})] == ["back"]


def test_pruning_needs_a_label(load: Call) -> None:
    assert "--prune deletes jobs by label" in load("[]", "--prune", status=2).stderr


def test_the_jobs_of_a_crontab_have_one_attempt_unless_said(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * backup\n")
    for fields, attempts in (({}, 1), ({"retry": {"attempts_max": 4}, "overlap": "skip"}, 4)):
        (entry,) = read_entries(str(file), fields=fields)
        assert entry.definition is not None
        assert entry.definition["retry"] == {"attempts_max": attempts}
        assert entry.definition.get("overlap") == fields.get("overlap")
