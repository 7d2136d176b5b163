"""A calendar as it is shown: every default written out."""

from __future__ import annotations

from typing import Any

import msgspec

from horarium.model.calendars import Calendar


def shown_calendar(name: str, calendar: Calendar) -> dict[str, Any]:
    """The calendar as plain data."""
    plain = {field: getattr(calendar, field) for field in calendar.__struct_fields__}
    return {"name": name, **plain, "holidays": tuple(map(msgspec.to_builtins, calendar.holidays))}
