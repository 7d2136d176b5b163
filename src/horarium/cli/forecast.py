"""`horarium forecast`: how much will run in the days to come, as a map of the hours."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from horarium.cli.output import print_json, say
from horarium.cli.shell import Server, on_server
from horarium.triggers.words import counted

SHADES = " .:-=+*#%@"
HOURS = 24
LABELS_SHOWN = 10
LOAD_SHOWN = 0.05
"""Runs at once, on average over an hour: less reads as none."""
QUIET_DAYS = 7


@click.command(
    help="""How many runs start in each hour of the days to come: a row for each day, darker where more start.

\b
Examples:
  horarium forecast
  horarium forecast --days 31 --by label:team
  horarium forecast --days 1 --bucket 60 --json
  horarium forecast --days 1 --quiet
""",
)
@click.option("--days", type=click.IntRange(1, 366), default=7, show_default=True, help="How many days, today first.")
@click.option("--by", default="queue", show_default=True, metavar="WHAT", help="queue, job, host or label:NAME.")
@click.option("--bucket", type=click.IntRange(1), default=3600, metavar="SECONDS", help="With --json: of buckets.")
@click.option("--quiet", is_flag=True, help="The minutes in which the fewest runs start, in up to seven days.")
@on_server
def forecast(server: Server, days: int, by: str, bucket: int, quiet: bool) -> None:
    now = datetime.now().astimezone().replace(second=0, microsecond=0)
    if quiet:
        _say_quiet(server, now, min(days, QUIET_DAYS))
        return
    today = now.replace(minute=0)
    until = today + timedelta(days=days)
    found = server.client.plans.forecast(today, until, bucket_seconds=bucket if server.as_json else 3600, by=by)
    if server.as_json:
        print_json(found)
        return
    for line in heat_map(found["buckets"]):
        say(line)
    _say_labels(found["buckets"])
    for name in found["left_out"]:
        say(f"Not counted, since its rule takes too long: {name}", err=True)


def _say_quiet(server: Server, since: datetime, days: int) -> None:
    found = server.client.plans.forecast(since, since + timedelta(days=days), bucket_seconds=60)
    if server.as_json:
        print_json({"quiet": found["quiet"], "left_out": found["left_out"]})
        return
    for each in found["quiet"]:
        say(f"{each['at']}  {counted(sum(each['starts'].values()), 'start')}")


def heat_map(buckets: list[dict[str, Any]]) -> list[str]:
    """Hours of each day as characters: the darkest where the most runs start."""
    rows: dict[str, list[int | None]] = {}
    for bucket in buckets:
        at = datetime.fromisoformat(bucket["at"]).astimezone()
        row = rows.setdefault(f"{at:%a %d %b}", [None] * HOURS)
        row[at.hour] = (row[at.hour] or 0) + sum(bucket["starts"].values())
    most = max((count for row in rows.values() for count in row if count is not None), default=0)
    lines = [" " * 12 + "".join(f"{hour:<3}" for hour in range(0, HOURS, 3)), ""]
    for day, row in rows.items():
        total = sum(count or 0 for count in row)
        lines.append(f"{day:<12}{''.join(_shade(count, most) for count in row)}  {counted(total, 'start'):>16}")
    return [*lines, "", f"{SHADES[-1]} = {counted(most, 'start')} in an hour"]


def _shade(count: int | None, most: int) -> str:
    if not count:
        return " "
    return SHADES[max(1, round(count / most * (len(SHADES) - 1)))]


def _say_labels(buckets: list[dict[str, Any]]) -> None:
    totals: dict[str, int] = {}
    busiest: dict[str, float] = {}
    for bucket in buckets:
        for label, count in bucket["starts"].items():
            totals[label] = totals.get(label, 0) + count
        for label, load in bucket["running"].items():
            busiest[label] = max(busiest.get(label, 0.0), load)
    for label, total in sorted(totals.items(), key=lambda pair: -pair[1])[:LABELS_SHOWN]:
        most = busiest.get(label, 0)
        at_once = f", up to {most:.1f} at once" if most >= LOAD_SHOWN else ""
        say(f"{label or '(none)'}: {counted(total, 'start')}{at_once}")
