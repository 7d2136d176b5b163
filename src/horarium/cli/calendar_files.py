"""Calendars as others keep them: the library `holidays` (countries, financial markets), iCalendar files, JSON, YAML."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from horarium.errors import HorariumError, InvalidRequest

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
DAYS_OFF_MAX = 60
"""Days of one event of an iCalendar file: school holidays, and no whole year."""


def from_country(country: str, subdivision: str | None, years: range) -> dict[str, Any]:
    """A country's holidays, and its weekend. Raises HorariumError."""
    library = _library()
    try:
        found = library.country_holidays(country.upper(), subdiv=subdivision, years=years)
    except NotImplementedError as error:
        raise HorariumError(f"--country: {error}") from None
    title = f"{country.upper()}-{subdivision}" if subdivision else country.upper()
    weekend = [WEEKDAYS[day] for day in sorted(found.weekend)]
    return _document(title, found, years) | {"weekend": weekend} | _substitutes(found)


def from_market(market: str, years: range) -> dict[str, Any]:
    """A financial market's holidays. Raises HorariumError."""
    try:
        found = _library().financial_holidays(market.upper(), years=years)
    except NotImplementedError as error:
        raise HorariumError(f"--market: {error}") from None
    return _document(market.upper(), found, years)


def _library() -> Any:
    try:
        import holidays
    except ImportError:
        raise HorariumError("--country and --market need: pip install 'horarium[server,holidays]'") from None
    return holidays


def _document(title: str, found: Mapping[date, str], years: range) -> dict[str, Any]:
    days = [{"date": day.isoformat(), "name": name[:200]} for day, name in sorted(found.items()) if day.year in years]
    if not days:
        raise HorariumError(f"{title}: no holidays are known from {years[0]} to {years[-1]}")
    return {"title": title, "holidays": days, "ends_on": f"{years[-1]}-12-31"}


def _substitutes(found: Any) -> dict[str, Any]:
    """Days of a weekend on which a country works in place of others."""
    days = sorted(day.isoformat() for day in getattr(found, "weekend_workdays", ()))
    return {"business_days": days} if days else {}


def from_ics(file: str, years: range) -> dict[str, Any]:
    """The days of the events of an iCalendar file (RFC 5545), with their names. Raises HorariumError."""
    try:
        from icalendar import Calendar
    except ImportError:
        raise HorariumError("iCalendar files need: pip install 'horarium[server,holidays]'") from None
    try:
        found: Any = Calendar.from_ical(_text_of(file))
        events = [event for event in found.walk("VEVENT") if "DTSTART" in event]
    except (ValueError, IndexError) as error:
        raise HorariumError(f"{file} is no iCalendar file: {error}") from None
    days: dict[str, dict[str, str]] = {}
    rules: list[dict[str, str]] = []
    for event in events:
        name = str(event.get("SUMMARY", ""))[:200]
        first, end = _span(event)
        if "RRULE" in event:
            rule = event["RRULE"].to_ical().decode()
            rules.append({"rrule": f"DTSTART:{first:%Y%m%d}T000000Z\nRRULE:{rule}", "name": name})
            continue
        for number in range(min((end - first).days, DAYS_OFF_MAX)):
            day = (first + timedelta(days=number)).isoformat()
            days[day] = {"date": day, "name": name}
    if not days and not rules:
        raise HorariumError(f"{file}: there are no events in it")
    return {"holidays": [*(days[day] for day in sorted(days)), *rules]}


def _span(event: Any) -> tuple[date, date]:
    """The first day of an event, and the day after its last."""
    first = _date(event["DTSTART"].dt)
    end = _date(event["DTEND"].dt) if "DTEND" in event else first + timedelta(days=1)
    return first, max(end, first + timedelta(days=1))


def _date(given: date | datetime) -> date:
    return given.date() if isinstance(given, datetime) else given


def read_calendar(file: str, years: range) -> dict[str, Any]:
    """A calendar from a file: iCalendar by its name, else JSON or YAML. Raises HorariumError."""
    if file.lower().endswith(".ics"):
        return from_ics(file, years)
    from horarium.server.documents import read_yaml

    document = next(iter(read_yaml(_text_of(file), file, InvalidRequest)), None)
    if not isinstance(document, dict):
        raise HorariumError(f"{file}: expected one calendar, an object such as {{holidays: [2027-01-01]}}")
    return {key: value for key, value in document.items() if key != "name"}


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise HorariumError(f"{file}: {error.strerror}") from None
