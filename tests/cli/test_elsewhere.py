"""CronJobs, schedules of EventBridge and systemd timers become jobs that fire as they did, or say why not."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from horarium.cli.documents import FORMATS, read_entries
from horarium.cli.elsewhere import aws_trigger
from horarium.cli.systemd import calendar_trigger, span_seconds
from horarium.errors import InvalidJob, InvalidTrigger
from horarium.triggers import parse_trigger

DOCS = Path(__file__).parents[2] / "docs"
COMING = DOCS / "coming-from"


def block(page: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", (COMING / page).read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def imported(text: str, tmp_path: Path, name: str, format: str | None = None, **how: Any) -> dict[str, Any]:
    (tmp_path / name).write_text(text)
    (entry,) = read_entries(str(tmp_path / name), format, **how)
    assert entry.definition is not None, entry.error
    return entry.definition


def refused(text: str, tmp_path: Path, name: str) -> str:
    (tmp_path / name).write_text(text)
    (entry,) = read_entries(str(tmp_path / name))
    assert entry.error is not None
    return entry.error


def words(spec: dict[str, Any]) -> str:
    return parse_trigger(spec).words()


def test_the_cron_job_of_the_page_is_the_job_of_the_page(tmp_path: Path) -> None:
    job = imported(block("kubernetes-cronjob.md", "yaml"), tmp_path, "cronjob.yaml")
    assert job["trigger"] == {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"}
    assert job["target"] == {"type": "command", "queue": "shell", "command": ["report", "--format", "pdf"]}
    assert (job["overlap"], job["catch_up"]["window_seconds"]) == ("skip", 600)
    assert (job["retry"]["attempts_max"], job["timeouts"]["execution_seconds"]) == (5, 3600)


def test_a_cron_job_that_would_do_other_work_is_refused(tmp_path: Path) -> None:
    page = block("kubernetes-cronjob.md", "yaml")
    assert "ENTRYPOINT" in refused(page.replace(", command: [report, --format, pdf]", ""), tmp_path, "a.yaml")
    secret = page.replace("image: example.com/report", "image: x, env: [{name: TOKEN, valueFrom: {}}]")
    assert "--pass-env" in refused(secret, tmp_path, "b.yaml")


def test_the_schedule_of_the_page_becomes_a_job(tmp_path: Path) -> None:
    job = imported(block("eventbridge.md", "json"), tmp_path, "schedule.json", queue="reports")
    assert words(job["trigger"]) == "every weekday (Monday to Friday) at 03:00, Europe/Berlin"
    assert job["target"] == {"type": "queue", "queue": "reports", "payload": {"format": "pdf"}}
    assert (job["jitter_seconds"], job["retry"]) == (900, {"attempts_max": 5, "age_max_seconds": 3600})


def test_schedules_come_in_lists_and_one_after_the_other(tmp_path: Path) -> None:
    one = {"Name": "a", "ScheduleExpression": "rate(5 minutes)", "State": "DISABLED"}
    two = {**one, "Name": "b", "ScheduleExpression": "rate(1 fortnight)"}
    path = tmp_path / "list.json"
    path.write_text(json.dumps([one, two]) + "\n" + json.dumps({**one, "Name": "c"}))
    first, second, third = read_entries(str(path), "eventbridge", prefix="aws-")
    assert first.definition is not None
    assert first.definition["enabled"] is False
    assert second.error is not None
    assert "fortnight" in second.error
    assert third.name == "aws-c"


def test_what_a_schedule_does_not_say_or_aws_fills_in_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"Schedules": [{"Name": "listed", "State": "ENABLED"}]}))
    (listed,) = read_entries(str(path), "eventbridge")
    assert "aws scheduler get-schedule" in str(listed.error)
    filled = {"ScheduleExpression": "rate(1 hour)", "Target": {"Input": '{"at": "<aws.scheduler.scheduled-time>"}'}}
    path.write_text(json.dumps({"Name": "filled", **filled}))
    (entry,) = read_entries(str(path), "eventbridge")
    assert "read `fire_at` of the run" in str(entry.error)


@pytest.mark.parametrize(
    ("aws", "ours"),
    [
        ("rate(1 hour)", {"type": "interval", "every_seconds": 3600}),
        ("at(2027-07-01T09:00:00)", {"type": "once", "at": "2027-07-01T09:00:00+02:00"}),
        ("cron(0 3 ? * 1 *)", "0 3 ? * 0"),
        ("cron(0 3 ? * 2-6 *)", "0 3 ? * 1-5"),
        ("cron(0 3 ? * 2#1 *)", "0 3 ? * 1#1"),
        ("cron(0 3 ? * 6L *)", "0 3 ? * 5L"),
        ("cron(0/15 3 1 * ? 2027)", "0 0/15 3 1 * ? 2027"),
    ],
)
def test_an_expression_of_aws_is_read_as_aws_does(aws: str, ours: Any) -> None:
    found = aws_trigger(aws, "Europe/Berlin")
    assert (found if isinstance(ours, dict) else found["expression"]) == ours
    assert parse_trigger(found)


def test_the_timer_of_the_page_becomes_a_job(tmp_path: Path) -> None:
    job = imported(block("systemd-timers.md", "ini"), tmp_path, "dump.unit", timezone="Europe/Berlin")
    assert job["name"] == "dump"
    assert words(job["trigger"]) == "every weekday (Monday to Friday) at 02:30, Europe/Berlin"
    assert job["target"]["command"] == ["/usr/bin/pg_dump", "-Fc", "-f", "/backup/db.dump", "db"]
    assert (job["target"]["user"], job["jitter_seconds"]) == ("backup", 300)
    assert (job["catch_up"], job["overlap"]) == ({"policy": "latest"}, "skip")


@pytest.mark.parametrize(
    ("calendar", "cron"),
    [
        ("daily", "0 0 0 * * *"),
        ("weekly", "0 0 0 * * MON"),
        ("Sat,Sun 20:00", "0 0 20 * * SAT,SUN"),
        ("*:0/15", "0 */15 * * * *"),
        ("*-*-* *:*:30", "30 * * * * *"),
        ("Monday *-05..06-1,15 08:05:40", "40 5 8 1,15 5-6 MON"),
        ("2027-*-01 00:00 UTC", "0 0 0 1 * * 2027"),
        ("Fri 13:00 Europe/Berlin", "0 0 13 * * FRI"),
    ],
)
def test_a_calendar_of_systemd_is_a_cron_trigger(calendar: str, cron: str) -> None:
    found = calendar_trigger(calendar, "UTC")
    assert found["expression"] == cron
    assert found["timezone"] == ("Europe/Berlin" if "Berlin" in calendar else "UTC")
    assert ("day_match" in found) == (calendar.startswith("Monday"))
    assert parse_trigger(found)


@pytest.mark.parametrize("calendar", ["*-*~03", "Mon..", "soon", "25"])
def test_another_calendar_is_refused(calendar: str) -> None:
    with pytest.raises((InvalidJob, InvalidTrigger), match=r"OnCalendar|day of week"):
        parse_trigger(calendar_trigger(calendar, "UTC"))


def test_a_span_of_time_is_read() -> None:
    assert [span_seconds(text) for text in ("90", "5min", "1h 30min", "1.5h")] == [90, 300, 5400, 5400]
    with pytest.raises(InvalidJob):
        span_seconds("5 moons")


def test_a_timer_that_does_more_is_refused(tmp_path: Path) -> None:
    unit = block("systemd-timers.md", "ini")
    assert "2 lines" in refused(unit + "ExecStart=/bin/true\n", tmp_path, "a.timer")
    assert "specifiers" in refused(unit.replace("/backup/db.dump", "%h/db.dump"), tmp_path, "b.timer")
    assert "OnUnitActiveSec" in refused(unit.replace("OnCalendar", "OnBootSec"), tmp_path, "c.timer")


def test_every_format_stands_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in DOCS.rglob("*.md") if page.name != "cli.md")
    assert [name for name in FORMATS[3:] if f"--format {name}" not in text] == []


def test_checks_of_healthchecks_are_work_done_elsewhere(tmp_path: Path) -> None:
    job = imported(block("healthchecks.md", "json"), tmp_path, "checks.json")
    assert job == {
        "name": "nightly-backup", "title": "Nightly backup", "target": {"type": "external"},
        "trigger": {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"},
        "timeouts": {"start_seconds": 1800}, "labels": {"prod": "true", "db": "true"},
    }  # fmt: skip
    simple = {"name": "Every hour!", "slug": "", "tags": "", "grace": 60, "status": "paused", "timeout": 3600,
              "ping_url": "https://hc-ping.com/x"}  # fmt: skip
    job = imported(json.dumps([simple]), tmp_path, "one.json")
    assert (job["name"], job["enabled"], job["trigger"]) == (
        "Every-hour",
        False,
        {"type": "interval", "every_seconds": 3600},
    )
    calendar = {**simple, "schedule": "Mon..Fri *-*-* 12:00:00", "tz": "UTC"}
    assert parse_trigger(imported(json.dumps({"checks": [calendar]}), tmp_path, "two.json")["trigger"]).words()
    del simple["timeout"]
    assert "KeyError: 'timeout'" in refused(json.dumps([simple]), tmp_path, "none.json")


class Crontab:
    """As `celery.schedules.crontab` keeps what it was given."""

    _orig_minute, _orig_hour, _orig_day_of_week, _orig_day_of_month, _orig_month_of_year = (
        "*/15",
        9,
        "mon, fri",
        "*",
        "*",
    )


class FirstMonday(Crontab):
    _orig_day_of_week, _orig_day_of_month = "mon", "1-7"


class Solar:
    pass


def test_a_beat_schedule_becomes_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = {
        "nightly report": {"task": "reports.nightly", "schedule": Crontab(), "kwargs": {"format": "pdf"}},
        "poll": {"task": "feeds.poll", "schedule": 30.0, "options": {"expires": 25, "queue": "slow"}, "args": (1,)},
        "sun": {"task": "sun", "schedule": Solar()},
        "first": {"task": "first", "schedule": FirstMonday()},
    }
    module = ModuleType("shop_tasks")
    module.app = SimpleNamespace(conf=SimpleNamespace(beat_schedule=beat, timezone="Europe/Berlin"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_tasks", module)
    nightly, poll, sun, first = read_entries("shop_tasks:app", "celery")
    assert first.definition is not None
    (fire,) = parse_trigger(first.definition["trigger"]).fires(datetime(2027, 1, 1, tzinfo=UTC), 1)
    assert fire == datetime(2027, 1, 4, 8, tzinfo=UTC), "the first Monday, in Berlin"
    assert nightly.definition is not None
    assert nightly.name == "nightly-report"
    of_words = "every Monday and Friday at 09:00, 09:15, 09:30 and 09:45, Europe/Berlin"
    assert words(nightly.definition["trigger"]) == of_words
    args = {"task": "reports.nightly", "args": [], "kwargs": {"format": "pdf"}}
    assert nightly.definition["target"] == {"type": "handler", "name": "celery_task", "args": args}
    assert poll.definition is not None
    assert poll.definition["trigger"] == {"type": "interval", "every_seconds": 30.0}
    assert poll.definition["timeouts"] == {"start_seconds": 25}
    assert poll.definition["target"]["args"]["options"] == {"queue": "slow"}
    assert "Solar: not translated" in str(sun.error)
    with pytest.raises(InvalidJob, match="environment that has Celery"):
        read_entries("nowhere_at_all:app", "celery")
