"""A crontab of seventeen lines, imported on a machine in Europe/Berlin: each line fires when cron itself would.

The oracle is cron's own loop, written again from its manual and source (Vixie's, as Debian has it): a virtual clock
that follows the wall clock minute by minute. Lines with a `*` in front of minute or hour go by the wall clock; others
are owed once, at the change where the clock skipped them, and not again where it repeats them.
"""

from __future__ import annotations

import json
from calendar import month_abbr
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from click.testing import CliRunner

from horarium.cli import cli
from horarium.cli.crontab import mail_channel
from horarium.client import Client
from horarium.model import Occasion
from horarium.triggers import Trigger, parse_trigger
from tests.servers.live import live_server

CRONTAB = r"""
SHELL=/bin/bash
MAILTO=ops@example.com
PATH=/usr/local/bin:/usr/bin:/bin
# m h dom mon dow user command
*/5 * * * * root /usr/local/bin/check-disk
30 2 * * * postgres pg_dump -Fc -f /backup/db.dump db
15 3 * * 1-5 www-data /opt/reports --date=$(date +\%F)
0 9 13 * FRI root /opt/friday-or-13th
0 0 */2 * MON root /opt/odd-mondays
@daily root /usr/bin/find /tmp -mtime +7 -delete
@weekly root certbot renew
@hourly www-data /opt/sync
0 22-23,0-5 * * * root /opt/night
*/20 2 * * * root /opt/in-the-gap
45 1-3 * * sun root /opt/around
0 12 1 jan,apr,jul,oct * root /opt/quarter
10-50/20 8-18 * * mon-fri www-data cd /srv/app && ./manage.py poll >/dev/null 2>&1
HOME=/srv/boss
0 6 * * 7 root mail -s report boss%Dear boss,%all is 100\% well%
59 23 28-31 * * root [ "$(date -d tomorrow +\%d)" = 01 ] && /opt/month-end
CRON_TZ=America/New_York
MAILTO=""
30 2 * * * root /opt/new-york
0 4 8-14 * sat root /opt/second-week-or-saturday
"""
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
WINDOWS = [
    (datetime(2027, 3, 12, tzinfo=UTC), datetime(2027, 4, 3, tzinfo=UTC)),
    (datetime(2027, 10, 28, tzinfo=UTC), datetime(2027, 11, 16, tzinfo=UTC)),
]
"""Both changes of both zones."""
LINES = [line for line in CRONTAB.splitlines() if line[:1] in tuple("*0123456789@")]
MINUTE = timedelta(minutes=1)
ALIASES = {"@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@hourly": "0 * * * *"}
NAMES = {name: number for number, name in enumerate(map(str.lower, month_abbr))} | {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}


def values(field: str, low: int, high: int) -> set[int]:
    """The numbers that a field of cron names."""
    found: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        begin, end = (NAMES.get(each) or int(NAMES.get(each, each)) for each in (first, last or first))
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def cron_fires(expression: str, zone: str, since: datetime, until: datetime) -> list[datetime]:
    """When cron would start a line."""
    fields = ALIASES.get(expression, expression).split()
    minute, hour, day, month, weekday = map(values, fields, (0, 0, 1, 1, 0), (59, 23, 31, 12, 7))
    weekday = {each % 7 for each in weekday}
    wild = fields[0].startswith("*") or fields[1].startswith("*")
    both = fields[2].startswith("*") or fields[4].startswith("*")

    def matches(wall: datetime) -> bool:
        days = wall.day in day, wall.isoweekday() % 7 in weekday
        return (
            wall.minute in minute and wall.hour in hour and wall.month in month and (all(days) if both else any(days))
        )

    def wall_of(moment: datetime) -> datetime:
        return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)

    found, moment, virtual = [], since, wall_of(since) - MINUTE
    while moment < until:
        running = wall_of(moment)
        if running - virtual == MINUTE:
            virtual = running
            due = matches(running)
        elif running > virtual:  # it was put forward: what is owed is started one after the other
            due = wild and matches(running)
            while virtual < running:
                virtual += MINUTE
                due |= not wild and matches(virtual)
        else:  # it was put back: lines with fixed times wait until the clock has caught up
            due = wild and matches(running)
        if due:
            found.append(moment)
        moment += MINUTE
    return found


def fires(trigger: Trigger, since: datetime, until: datetime) -> Iterator[datetime]:
    """All fire times of a trigger in a window."""
    found = trigger.next_after(since - MINUTE)
    while found is not None and found < until:
        yield found
        found = trigger.next_after(found)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TZ", BERLIN)
    with live_server() as server, Client(server.url) as found:
        monkeypatch.setenv("HORARIUM_URL", server.url)
        yield found


@pytest.mark.slow
def test_each_line_of_a_crontab_fires_when_cron_would_and_is_what_cron_would_start(client: Client) -> None:
    assert len(LINES) == 17
    imported(CRONTAB, "created", 17, "--mailto")
    jobs = {" ".join(msgspec.to_builtins(job.target)["command"][2].split()): job for job in client.list_jobs()}
    assert len(jobs) == 17
    fired = 0
    for line in LINES:
        count = 1 if line.startswith("@") else 5
        *fields, user, command = line.split(None, count + 1)
        text, *rest = command.replace(r"\%", "\0").split("%")
        text, stdin = text.replace("\0", "%"), "\n".join(rest).replace("\0", "%")
        job = jobs.pop(" ".join(text.split()))
        target = msgspec.to_builtins(job.target)
        late = LINES.index(line) >= 15
        assert (target["command"][:2], target["user"]) == (("/bin/bash", "-c"), user)
        assert target["env"]["PATH"] == "/usr/local/bin:/usr/bin:/bin"
        assert target.get("stdin", "") == stdin
        assert target.get("cwd") == ("/srv/boss" if LINES.index(line) >= 13 else None)
        assert (job.catch_up.policy, job.overlap, job.retry.attempts_max) == ("none", "allow", 1)
        told = [each.notify for each in job.on.get(Occasion.FAILED, ())]
        assert told == ([] if late else [mail_channel(["ops@example.com"])])
        for since, until in WINDOWS:
            zone = NEW_YORK if late else BERLIN
            expected = cron_fires(" ".join(fields), zone, since, until)
            assert list(fires(parse_trigger(job.trigger), since, until)) == expected, line
            fired += len(expected)
    assert fired > 10_000


@pytest.mark.slow
def test_what_a_crontab_no_longer_holds_is_deleted_and_nothing_else(client: Client) -> None:
    imported(CRONTAB, "created", 17)
    imported("5 5 * * * root /opt/of-another\n", "created", 1, source="web2")
    before = {job.name: job.id for job in client.list_jobs()}
    lines = CRONTAB.replace("\n30 2 * * * postgres", "\n#30 2 * * * postgres").replace("@weekly root", "7 7 * * * root")
    answer = imported(lines, "unchanged", 15)
    assert (answer["updated"], len(answer["deleted"]), answer["deleted"][0].rpartition("-")[0]) == (
        1,
        1,
        "web1-pg-dump",
    )
    assert {job.name: job.id for job in client.list_jobs()} == {
        name: id for name, id in before.items() if name not in answer["deleted"]
    }


def imported(text: str, what: str, count: int, *more: str, source: str = "web1") -> dict[str, Any]:
    arguments = ["job", "import", "-", "--format", "system-crontab", "--source", source, "--json", *more]
    result = CliRunner().invoke(cli, arguments, input=text)
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found[what] == count, found
    return found
