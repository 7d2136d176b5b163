"""Documents of plain data, read: each definition for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horarium.errors import CallerError, InvalidJob
from horarium.model import Name
from horarium.model.calendars import Calendar
from horarium.model.channels import AnyChannel
from horarium.operations.bounds.listing import Slices
from horarium.operations.plans.making import Documents
from horarium.wire.definitions import JobDefinition
from horarium.wire.faults import converted

Plain = Mapping[str, Any]


async def read_documents(
    jobs: Sequence[Plain],
    calendars: Sequence[Plain],
    channels: Sequence[Plain],
    read_job: Callable[[dict[str, Any]], JobDefinition],
) -> Documents:
    """Definitions with their names. `read_job` makes one of the fields of a job; it raises CallerError."""
    slices = Slices()
    read: list[tuple[str, JobDefinition | CallerError]] = []
    for fields in jobs:
        await slices.give_way()
        name = fields.get("name")
        try:
            definition = read_job(dict(fields))
            read.append((definition.name, definition))
        except CallerError as error:
            read.append((name if isinstance(name, str) else "", error))
    return Documents(read, _read(calendars, Calendar), _read(channels, AnyChannel))


def _read(given: Sequence[Plain], kind: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    seen = set[str]()
    for fields in given:
        name = fields.get("name")
        try:
            name = converted(name, Name, "name")
            if name in seen:
                raise InvalidJob(f"name: {name!r} is here twice", field="name")
            seen.add(name)
            own = {key: value for key, value in fields.items() if key != "name"}
            found.append((name, converted(own, kind)))
        except CallerError as error:
            found.append((name if isinstance(name, str) else "", error))
    return found
