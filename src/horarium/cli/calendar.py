"""`horarium calendar`: which days are business days."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from horarium.cli.calendar_files import from_country, from_ics, from_market, read_calendar
from horarium.cli.output import Column, print_fields, print_json, say
from horarium.cli.shell import Lazy, Server, on_server
from horarium.triggers.words import counted

calendar = Lazy(name="calendar", help="Which days are business days, for triggers that fire on them.")
NAME = click.argument("name")
COLUMNS = (
    Column("name", whole=True),
    Column("weekend", whole=True, of=lambda each: ",".join(each["weekend"])),
    Column("holidays", of=lambda each: len(each["holidays"])),
    Column("ends", of=lambda each: each["ends_on"] or "-"),
    Column("title"),
)
SHOWN_FIRES = 5


def _weekend(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip().upper() for part in text.split(",") if part.strip()]


@calendar.command(
    help="Define a calendar, or replace it.\n\n\b\nExample:\n"
    '  horarium calendar add office --holiday "2027-01-01=New Year" --holiday 2027-12-24'
)
@NAME
@click.option("--weekend", metavar="DAYS", help="SAT,SUN if left out; an empty text: none.")
@click.option("--holiday", multiple=True, metavar="DATE[=NAME]", help="A day off; repeatable.")
@click.option("--business-day", multiple=True, metavar="DATE", help="A day of work in spite of all; repeatable.")
@click.option("--ends-on", metavar="DATE", help="The last day that it knows.")
@click.option("--title", metavar="TEXT", help="Its name for people.")
@on_server
def add(
    server: Server,
    name: str,
    weekend: str | None,
    holiday: tuple[str, ...],
    business_day: tuple[str, ...],
    ends_on: str | None,
    title: str | None,
) -> None:
    days: list[Any] = []
    for text in holiday:
        date, separator, said = text.partition("=")
        days.append({"date": date, "name": said} if separator else date)
    fields = {
        "title": title,
        "weekend": _weekend(weekend),
        "holidays": days or None,
        "business_days": list(business_day) or None,
        "ends_on": ends_on,
    }
    _put(server, name, {key: value for key, value in fields.items() if value is not None})


def _put(server: Server, name: str, document: dict[str, Any]) -> None:
    made, created = server.client.calendars.put(name, document)
    ends = f", until {made['ends_on']}" if made["ends_on"] else ""
    done = "added" if created else "replaced"
    server.tell(made, f"Calendar {name} {done}: {counted(len(made['holidays']), 'holiday')}{ends}.")


@calendar.command(
    "import",
    help="Define a calendar from holidays that others keep. --country and --market need pip install"
    " 'horarium[server,holidays]'.\n\n\b\nExamples:\n"
    "  horarium calendar import de-be --country DE --subdivision BE --years 2026-2036\n"
    "  horarium calendar import target2 --market XECB\n"
    "  horarium calendar import school --ics holidays.ics",
)
@NAME
@click.option("--country", metavar="CODE", help="A country, by ISO 3166-1: DE.")
@click.option("--subdivision", metavar="CODE", help="A part of it, by ISO 3166-2: BE.")
@click.option("--market", metavar="CODE", help="A financial market: XECB (TARGET2), XNYS.")
@click.option("--ics", metavar="FILE", help="The events of an iCalendar file; - is the standard input.")
@click.option("--years", metavar="FROM-TO", help="Which years; left out: this one and the ten after it.")
@click.option("--weekend", metavar="DAYS", help="Left out: that of the country, or SAT,SUN.")
@on_server
def import_(
    server: Server,
    name: str,
    country: str | None,
    subdivision: str | None,
    market: str | None,
    ics: str | None,
    years: str | None,
    weekend: str | None,
) -> None:
    if sum(each is not None for each in (country, market, ics)) != 1:
        raise click.UsageError("give one of --country, --market and --ics")
    span = _years(years)
    if country is not None:
        document = from_country(country, subdivision, span)
    elif market is not None:
        document = from_market(market, span)
    else:
        document = from_ics(ics or "-", span)
    if weekend is not None:
        document["weekend"] = _weekend(weekend)
    _put(server, name, document)


def _years(text: str | None) -> range:
    if text is None:
        first = datetime.now(UTC).year
        return range(first, first + 11)
    first_text, _, last_text = text.partition("-")
    if not first_text.isdigit() or not (last_text or first_text).isdigit():
        raise click.UsageError(f"--years: {text!r} is not FROM-TO, such as 2026-2036")
    return range(int(first_text), int(last_text or first_text) + 1)


@calendar.command("list", help="List calendars.\n\n\b\nExample:\n  horarium calendar list --json")
@on_server
def list_calendars(server: Server) -> None:
    found = list(server.client.calendars.list())
    server.tell_all(found, COLUMNS, "There are no calendars. Add one: horarium calendar import NAME --country DE")


@calendar.command(
    help="Show a calendar, and its holidays of a year.\n\n\b\nExample:\n  horarium calendar show de --year 2027"
)
@NAME
@click.option("--year", type=click.IntRange(1970, 2200), help="Left out: this year.")
@on_server
def show(server: Server, name: str, year: int | None) -> None:
    found = server.client.calendars.get(name)
    if server.as_json:
        print_json(found)
        return
    year = year or datetime.now(UTC).year
    days = server.client.calendars.days(name, f"{year}-01-01", f"{year}-12-31")
    weekend = ",".join(found["weekend"]) or "none"
    open_days = sum(day["business_day"] for day in days)
    fields = [("title", found["title"]), ("weekend", weekend), ("ends on", found["ends_on"])]
    print_fields([*fields, (f"business days of {year}", open_days)])
    for day in days:
        if not day["business_day"] and (day.get("name") or not _in_weekend(day["date"], found["weekend"])):
            say(f"  {day['date']}  {day.get('name', '')}".rstrip())


def _in_weekend(date: str, weekend: list[str]) -> bool:
    return f"{datetime.fromisoformat(date):%a}".upper() in weekend


@calendar.command(
    help="Show how fire times of jobs would change within 400 days. Writes nothing. Exit 2 if any would.\n\n\b\n"
    "Example:\n  horarium calendar diff de-be new-holidays.ics"
)
@NAME
@click.argument("file")
@on_server
def diff(server: Server, name: str, file: str) -> None:
    document = read_calendar(file, _years(None))
    told = server.client.calendars.compare(name, document)
    server.tell(told, lambda: _say_changes(told))
    if told["changes"]:
        raise click.exceptions.Exit(2)


def _say_changes(told: dict[str, Any]) -> None:
    for each in told["changes"]:
        say(each["job"])
        lines = [f"  + {fire}" for fire in each["added"]] + [f"  - {fire}" for fire in each["removed"]]
        lines += [f"  {fire['from']} -> {fire['to']}" for fire in each["moved"]]
        lines += [f"  {fire}: skipped or moved by hand, which is lost" for fire in each.get("overrides_dropped", ())]
        for line in lines[:SHOWN_FIRES]:
            say(line)
        if len(lines) > SHOWN_FIRES:
            say(f"  and {len(lines) - SHOWN_FIRES} more")
    if told["truncated"]:
        say("More jobs use this calendar than were compared.")
    if not told["changes"]:
        say("No fire time changes.")


@calendar.command(help="Remove a calendar that no job uses.\n\n\b\nExample:\n  horarium calendar remove office")
@NAME
@on_server
def remove(server: Server, name: str) -> None:
    server.client.calendars.delete(name)
    server.tell({"removed": name}, f"Calendar {name} removed.")
