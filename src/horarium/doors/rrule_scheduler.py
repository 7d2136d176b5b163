"""The door for clients of rrule-scheduler: `/api/schedules`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from horarium.access.roles import Scope
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.reading import read_all
from horarium.api.routing import AnyRequest
from horarium.clock import MINUTE, to_instant
from horarium.doors.rrule_schedules import (
    LABEL,
    NAME,
    Event,
    ScheduleRefused,
    definition,
    event_ahead,
    event_of,
    is_over,
    over,
    read_fields,
    refused,
    shown,
    shown_fields,
    start_at,
    start_of,
)
from horarium.doors.web import Admit, Route, is_short_id, read_object, short_id, value
from horarium.errors import CallerError, InvalidTrigger, NotFound
from horarium.model import UNFINISHED, Job, Run, State, uuid7
from horarium.operations.bounds.listing import pages_of
from horarium.operations.facade import Operations
from horarium.operations.writing.context import Entropy
from horarium.ports import PAGE_MAX, RunFilter
from horarium.wire.definitions import JobDefinition

TIMEFRAME = 60 * MINUTE
"""How far ahead events are listed as pending."""
AHEAD_MAX = 1_000
EVENTS_MAX = 10_000
"""How deep pages of events go."""
LIMIT = 10
FINISHED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
UNREADABLE = "Invalid request body"
UNREADABLE_PATCH = "Invalid JSON body for updates"
SCHEDULES = "/api/schedules"


class RruleScheduler:
    """See `web.Door`."""

    name = NAME
    shares = False
    prefixes: tuple[str, ...] = (SCHEDULES,)

    def __init__(self, operations: Operations, entropy: Entropy, admit: Admit) -> None:
        self._operations = operations
        self._entropy = entropy
        self.admit = admit

    def routes(self) -> Sequence[Route]:
        one = SCHEDULES + "/{id}"
        return [
            Route("POST", SCHEDULES, self._answered(self.create), Scope.JOBS_WRITE),
            Route("GET", one, self._answered(self.get), Scope.JOBS_READ),
            Route("PUT", one, self._answered(self.update), Scope.JOBS_WRITE),
            Route("DELETE", one, self._answered(self.delete), Scope.JOBS_WRITE),
            Route("GET", f"{one}/events/pending", self._answered(self.pending), Scope.RUNS_READ),
            Route("GET", f"{one}/events/history", self._answered(self.history), Scope.RUNS_READ),
        ]

    def _answered(self, handle: Any) -> Any:
        async def answered(asked: AnyRequest) -> Response:
            try:
                answer: Response = await handle(asked)
                return answer
            except ScheduleRefused as error:
                text: Any = error.message
                return value({"error": {"code": error.code, "message": text} if error.code else text}, error.status)

        return answered

    # ---- schedules

    async def create(self, asked: AnyRequest) -> Response:
        content = read_object(await read_all(asked, BODY_BYTES_MAX))
        if content is None or not _is_time(content.get("created_at")):
            raise ScheduleRefused(UNREADABLE, 400, None)
        fields = read_fields(content, UNREADABLE)
        now = self._operations.clock.now()
        id = short_id(uuid7(now, self._entropy(10)))
        wanted = definition(id, fields, start_at(now, fields.get("rrule")))
        await _write(lambda taken: self._operations.jobs.create_job(taken(wanted)))
        return value({"id": id}, 201)

    async def get(self, asked: AnyRequest) -> Response:
        return value(shown(await self._job(asked)))

    async def update(self, asked: AnyRequest) -> Response:
        """A merge: absent fields stay, `null` removes."""
        content = read_object(await read_all(asked, BODY_BYTES_MAX))
        if content is None:
            raise ScheduleRefused(UNREADABLE_PATCH, 400, None)
        job = await self._job(asked)
        for name, why in (("rrule", "Invalid RRULE format"), ("callback_url", "Invalid callback URL format")):
            if name in content and not isinstance(content[name], str):
                raise ScheduleRefused(why)
        changes = read_fields(content, UNREADABLE_PATCH)
        if changes:
            jobs, now = self._operations.jobs, self._operations.clock.now()

            def merged(stored: Job) -> JobDefinition:
                fields = {**shown_fields(stored), **changes}
                wanted = definition(stored.name, fields, start_of(stored, fields["rrule"], now))
                return replace(wanted, enabled=True) if is_over(stored) else wanted

            await _write(lambda taken: jobs.bring_to(job.name, lambda stored: taken(merged(stored))))
        return value({"message": "Schedule updated successfully."})

    async def delete(self, asked: AnyRequest) -> Response:
        job = await self._job(asked)
        await self._operations.jobs.delete_job(job.name)
        return value({"message": "Schedule and associated events deleted."})

    async def _job(self, asked: AnyRequest) -> Job:
        id = asked.path_params["id"]
        if not is_short_id(id.lower()):
            raise ScheduleRefused("Invalid schedule ID format", 400, "invalid_request")
        try:
            job = await self._operations.jobs.get_job(id.lower())
        except NotFound:
            raise ScheduleRefused("Schedule not found", 404, "not_found") from None
        if job.labels.get(LABEL) != NAME:
            raise ScheduleRefused("Schedule not found", 404, "not_found")
        return job

    # ---- events

    async def pending(self, asked: AnyRequest) -> Response:
        """Runs under way, and those due within the hour, newest first."""
        job = await self._job(asked)
        now = self._operations.clock.now()
        begun = await self._runs(job.name, UNFINISHED)
        fires, _ = await self._operations.jobs.fires(job.name, AHEAD_MAX)
        ahead = [to_instant(fire) for fire in fires if now < to_instant(fire) < now + TIMEFRAME]
        events = {event.id: event for event in (event_ahead(job, fire, TIMEFRAME) for fire in ahead)}
        events |= {event.id: event for event in map(event_of, begun)}
        return _page(asked, sorted(events.values(), key=lambda event: event.run_time, reverse=True))

    async def history(self, asked: AnyRequest) -> Response:
        """Finished runs. It stays for a while when its schedule is deleted."""
        id = asked.path_params["id"].lower()
        runs = await self._runs(id, FINISHED) if is_short_id(id) else []
        if not runs:
            await self._job(asked)
        return _page(asked, [event_of(run) for run in runs])

    async def _runs(self, name: str, states: frozenset[State]) -> list[Run]:
        where, found = RunFilter(job=name, states=states), list[Run]()
        async for page in pages_of(lambda after: self._operations.store.list_runs(where, after, PAGE_MAX)):
            found += page
            if len(found) >= EVENTS_MAX:
                break
        return found


async def _write(write: Callable[[Callable[[JobDefinition], JobDefinition]], Awaitable[object]]) -> None:
    """Write a schedule as the given function takes it: a rule that fires no more is taken all the same. Raises
    ScheduleRefused."""
    try:
        try:
            await write(lambda wanted: wanted)
        except InvalidTrigger:
            await write(over)
    except NotFound:
        raise ScheduleRefused("Schedule not found", 404, "not_found") from None
    except CallerError as error:
        raise refused(error) from None


def _page(asked: AnyRequest, events: Sequence[Event]) -> Response:
    limit, page = min(_whole_number(asked, "limit", LIMIT), PAGE_MAX), _whole_number(asked, "page", 1)
    chosen = events[(page - 1) * limit : page * limit]
    return value({"events": chosen or None, "limit": limit, "page": page})


def _whole_number(asked: AnyRequest, name: str, default: int) -> int:
    text = asked.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and int(text[:18]) > 0 else default


def _is_time(given: Any) -> bool:
    try:
        msgspec.convert(given, datetime | None)
    except msgspec.ValidationError:
        return False
    return True
