"""What people type, read: durations, instants, triggers, targets, policies, crontabs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from horarium.cli.crontab import NAME_CHARS_MAX, Crontab
from horarium.cli.documents import read_entries
from horarium.cli.fields import (
    attempts_of,
    body_of,
    concurrency_of,
    duration_seconds,
    guess_trigger,
    is_cron,
    policies_of,
    target_of,
    trigger_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("1.5h", 5400),
        ("250ms", 0.25), ("0", 0), ("1H", 3600),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "-5m", "5m!", "five", "1e3", "5 m", "nan", "٥m", "1h-3m"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert duration_seconds(text) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("* * * * *", "cron"),
        ("*/15 9-17 * * MON-FRI", "cron"),
        ("0 0 12 * * ?", "cron"),
        ("0 9 L * *", "cron"),
        ("H H * * *", "cron"),
        ("@daily", "cron"),
        ("FREQ=DAILY", "rrule"),
        ("RRULE:FREQ=DAILY;COUNT=2", "rrule"),
        ("DTSTART;TZID=Europe/Berlin:20250101T083000\\nRRULE:FREQ=DAILY", "rrule"),
        ("2026-12-24T18:00:00+01:00", "once"),
        ("5m", "interval"),
        ("every other tuesday at 9:34am", "phrase"),
        ("9 am on every monday", "phrase"),
        ("every day at 9", "phrase"),
        ('{"type": "cron", "expression": "@hourly"}', "cron"),
    ],
)
def test_a_trigger_is_guessed(text: str, kind: str) -> None:
    assert guess_trigger(text, None)["type"] == kind


def test_a_rule_typed_in_one_line_becomes_lines() -> None:
    assert guess_trigger("DTSTART:20250101T000000Z\\nRRULE:FREQ=DAILY", None)["rrule"].splitlines() == [
        "DTSTART:20250101T000000Z",
        "RRULE:FREQ=DAILY",
    ]


@pytest.mark.parametrize(("text", "count"), [("5 4 * *", 4), ("* * * *", 4), ("0 0 12", 3), ("1 2 3 4 5 6 7 8", 8)])
def test_a_cron_expression_with_a_wrong_number_of_fields_is_called_that(text: str, count: int) -> None:
    with pytest.raises(click.UsageError, match=f"is a cron expression of {count} fields"):
        guess_trigger(text, None)


def test_words_are_no_cron_expression() -> None:
    assert not is_cron("every day at nine sharp")
    assert not is_cron("* * * *")
    assert not is_cron("1 of the last days now")


@pytest.mark.parametrize(
    ("flags", "spec"),
    [
        (
            {"cron": "@daily", "timezone": "Europe/Berlin"},
            {"type": "cron", "expression": "@daily", "timezone": "Europe/Berlin"},
        ),
        ({"every": "90m"}, {"type": "interval", "every_seconds": 5400}),
        ({"every": "1.5s"}, {"type": "interval", "every_seconds": 1.5}),
        ({"at": "2026-07-01T09:00", "timezone": "Europe/Berlin"}, {"type": "once", "at": "2026-07-01T09:00:00+02:00"}),
        ({"at": "2026-07-01T09:00:00Z"}, {"type": "once", "at": "2026-07-01T09:00:00+00:00"}),
        ({"when": "every day at 9"}, {"type": "phrase", "text": "every day at 9"}),
        ({}, None),
    ],
)
def test_flags_become_a_trigger(flags: dict[str, Any], spec: dict[str, Any] | None) -> None:
    assert trigger_of(flags) == spec


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cron": "@daily", "every": "5m"}, "give one trigger, not --cron and --every"),
        ({"every": "soon"}, "'soon' is not a duration"),
        ({"every": "5m", "timezone": "UTC"}, "an interval has none"),
        ({"at": "tomorrow"}, "'tomorrow' is not an instant"),
        ({"at": "2026-07-01T09:00"}, "has no offset; add one"),
        ({"at": "2026-07-01T09:00", "timezone": "Mars/Base"}, "there is no zone 'Mars/Base'"),
        ({"timezone": "UTC"}, "--timezone belongs to a trigger"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        trigger_of(flags)
    assert words in caught.value.message


def test_flags_become_a_target() -> None:
    http = {"http": "https://x", "method": "put", "header": ("X-A: 1",), "body": '{"a": 1}', "callback": True}
    assert target_of(http) == {
        "type": "http", "url": "https://x", "method": "PUT", "headers": {"X-A": "1"}, "body": {"a": 1},
        "completion": "callback",
    }  # fmt: skip
    assert target_of({"queue": "q", "payload": [1]}) == {"type": "queue", "queue": "q", "payload": [1]}
    assert target_of({"handler": "h", "args": {"a": 1}}) == {"type": "handler", "name": "h", "args": {"a": 1}}
    assert target_of({"bus": "b"}) == {"type": "bus", "bus": "b"}
    with pytest.raises(click.UsageError, match="give one target, not --http and --queue"):
        target_of({"http": "https://x", "queue": "q"})


def test_a_body_is_json_where_it_is_json_and_else_text() -> None:
    assert body_of({"body": "[1]"}) == [1]
    assert body_of({"body": "plain"}) == "plain"
    with pytest.raises(click.UsageError, match="not both"):
        body_of({"body": "a", "body_file": "b"})


def test_flags_become_policies() -> None:
    flags = {
        "catch_up": "all",
        "catch_up_window": 60.0,
        "retries": 4,
        "backoff": 1.0,
        "label": ("a=b=c", "d="),
        "keep": 5.0,
    }
    assert policies_of(flags) == {
        "catch_up": {"policy": "all", "window_seconds": 60.0},
        "retry": {"attempts_max": 5, "backoff_seconds": 1.0},
        "labels": {"a": "b=c", "d": ""},
        "retention": {"finished_seconds": 5.0},
    }
    assert attempts_of({"attempts": 4}) == 4
    with pytest.raises(click.UsageError, match="N retries are N \\+ 1 attempts"):
        attempts_of({"attempts": 1, "retries": 1})
    with pytest.raises(click.UsageError, match="--label: 'x' has no '='"):
        policies_of({"label": ("x",)})


def test_concurrency_is_key_and_number() -> None:
    assert concurrency_of("db=2") == {"key": "db", "max": 2}
    assert concurrency_of("db") == {"key": "db", "max": 1}
    assert concurrency_of("a=b=2") == {"key": "a=b", "max": 2}
    with pytest.raises(click.UsageError, match="is not KEY=MAX"):
        concurrency_of("db=many")


CRONTAB = r"""
# backups
MAILTO="ops@example.com"
0 3 * * * /usr/bin/backup --all
CRON_TZ=Europe/Berlin
*/5 * * * MON-FRI /usr/bin/poll
@hourly   /usr/bin/poll
0 0 1 * * date +\%F | cat%line one%line two
"""


def jobs_of(text: str, **how: Any) -> list[dict[str, Any]]:
    entries = list(Crontab("crontab", "shell", "UTC", **how).read(text))
    assert [entry.error for entry in entries] == [None] * len(entries)
    return [entry.definition for entry in entries if entry.definition is not None]


def test_a_crontab_becomes_jobs() -> None:
    backup, poll, hourly, stdin = jobs_of(CRONTAB)
    assert backup["name"].startswith("backup-")
    assert backup == {
        "name": backup["name"],
        "trigger": {"type": "cron", "expression": "0 3 * * *", "timezone": "UTC"},
        "target": {
            "type": "command",
            "queue": "shell",
            "command": ["/bin/sh", "-c", "/usr/bin/backup --all"],
            "env": {"MAILTO": "ops@example.com"},
        },
        "retry": {"attempts_max": 1},
        "catch_up": {"policy": "none"},
        "timeouts": {"start_seconds": 900},
        "concurrency": {"key": f"crontab/{backup['name']}", "max": 10},
    }
    assert poll["trigger"] == {"type": "cron", "expression": "*/5 * * * MON-FRI", "timezone": "Europe/Berlin"}
    assert poll["name"].startswith("poll-")
    assert hourly["name"] == f"{poll['name']}-2"
    assert hourly["trigger"]["expression"] == "@hourly"
    payload = stdin["target"]
    assert (payload["command"][2], payload["stdin"]) == ("date +%F | cat", "line one\nline two")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("@reboot /bin/x", "crontab:1: @reboot has no fire time"),
        ("0 3 * * *", "crontab:1: '0 3 * * *' is not `minute hour day month weekday command`"),
        ("every day /bin/x and more words", "crontab:1:"),
        ("RANDOM_DELAY=soon", "crontab:1: RANDOM_DELAY=soon is no number of minutes"),
    ],
)
def test_a_line_that_is_none_of_a_crontab_is_named_and_the_others_are_read(line: str, words: str) -> None:
    bad, good = Crontab("crontab", "q", "UTC").read(f"{line}\n# a comment\n\n@daily /bin/true")
    assert f"{bad.place}: {bad.error}".startswith(words)
    assert (good.place, (good.name or "")[:5]) == ("crontab:4", "true-")


SUSE = "SHELL=/bin/bash\n-*/15 * * * *   root  test -x /usr/lib/cron/run-crons && /usr/lib/cron/run-crons\n"


def test_a_line_that_cron_is_not_to_log_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(SUSE)
    (entry,) = read_entries(str(tmp_path / "file"), queue="shell", timezone="UTC")
    job = entry.definition or {}
    assert (job["trigger"]["expression"], job["target"]["user"]) == ("*/15 * * * *", "root")
    (daily,) = jobs_of("-@daily root /bin/true\n", with_user=True)
    assert daily["trigger"]["expression"] == "@daily"


@pytest.mark.parametrize("text", ["0 3 * * * work\n", "@daily work\n", '{"name": "work"}', "name: work\n"])
def test_a_file_with_a_byte_order_mark_is_as_one_without(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8-sig")
    (entry,) = read_entries(str(tmp_path / "file"), queue="shell", timezone="UTC")
    assert (entry.error, (entry.name or "")[:4]) == (None, "work")


def test_the_variables_of_a_crontab_that_cron_knows_keep_their_meaning() -> None:
    text = "SHELL = /bin/bash\nHOME=\"/srv/my app\"\n'RANDOM_DELAY'=5\nPATH=/opt/bin:/usr/bin\n0 3 * * * work\n"
    (job,) = jobs_of(text)
    payload = job["target"]
    assert (payload["command"], payload["cwd"]) == (["/bin/bash", "-c", "work"], "/srv/my app")
    assert payload["env"] == {"SHELL": "/bin/bash", "HOME": "/srv/my app", "PATH": "/opt/bin:/usr/bin"}
    assert job["jitter_seconds"] == 300


def test_a_variable_is_for_the_lines_below_it() -> None:
    before, after = jobs_of("@daily a\nA=1\n@daily b\n")
    assert "env" not in before["target"]
    assert after["target"]["env"] == {"A": "1"}


def test_a_system_crontab_names_users() -> None:
    (job,) = jobs_of("17 * * * *\troot\tcd / && run-parts /etc/cron.hourly\n", with_user=True)
    assert (job["target"]["user"], job["name"][:10]) == ("root", "run-parts-")
    assert job["target"]["command"][2] == "cd / && run-parts /etc/cron.hourly"
    (entry,) = Crontab("c", "q", "UTC", with_user=True).read("0 3 * * * work")
    assert "weekday user command" in (entry.error or "")


def test_names_follow_from_commands_whatever_stands_around_them() -> None:
    long = "/usr/bin/backup --all --to s3://bucket/a/very/long/path/that/goes/on/and/on"
    lines = [f"0 3 * * * {long}/one", f"0 3 * * * {long}/two", "@daily a b", "@daily a  c", "@daily *"]
    names = {job["target"]["command"][2]: job["name"] for job in jobs_of("\n".join(lines))}
    turned = {job["target"]["command"][2]: job["name"] for job in jobs_of("\n".join(reversed(lines)))}
    assert names == turned
    assert len(set(names.values())) == 5
    assert names["*"].startswith("command-")


def test_a_long_program_has_a_name_that_is_cut() -> None:
    (job,) = jobs_of(f"@daily /opt/{'x' * 300}\n")
    assert job["name"].startswith("x" * NAME_CHARS_MAX + "-")
    assert len(job["name"]) < 2 * NAME_CHARS_MAX


def test_commands_that_look_alike_are_told_apart_by_their_hash() -> None:
    first, second, again = jobs_of("@daily a-b\n@daily a b\n@hourly a b")
    assert (first["name"][:4], second["name"][:2], again["name"]) == ("a-b-", "a-", f"{second['name']}-2")


def test_names_may_begin_with_a_prefix() -> None:
    assert [job["name"][:8] for job in jobs_of("@daily a", prefix="host1.")] == ["host1.a-"]
