"""The endpoints under /jobs/{name}/fires/{instant}: one fire time skipped, moved, or as its rule has it again."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.problems import InvalidContent
from horarium.api.reading import job_name, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery, Reason
from horarium.clock import to_instant
from horarium.errors import CallerError
from horarium.wire.definitions import Moment
from horarium.wire.faults import Fault
from horarium.wire.overrides import OverrideView, override_view, override_views

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\S+", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)
PROBLEMS = ("not_found", "no_such_fire", "already_begun", "conflict", "too_expensive")


class SkipRequest(Struct, forbid_unknown_fields=True):
    """Why the fire time does not run."""

    reason: Reason | None = None


class MoveRequest(Struct, forbid_unknown_fields=True):
    """When its run is due instead, and why."""

    to: Annotated[Moment, Meta(description="In the future.")]
    reason: Reason | None = None


class OverridePage(Page[OverrideView]):
    """One page of the overrides of a job, by fire time."""


class Overrides(Handlers):
    @Endpoint(
        "POST", "/jobs/{name}/fires/{instant}/skip", "skipFire", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Skip one fire time of a job",
        description="Also one that is planned ahead: its run is withdrawn. Asked again, nothing changes.",
        body=SkipRequest, optional_body=True, examples=(Example("a public holiday", {"reason": "the bank is closed"}),),
        answers={200: (OverrideView, "The override")}, problems=PROBLEMS,
    )  # fmt: skip
    async def skip(self, call: Call) -> Answer:
        asked: SkipRequest = call.body or SkipRequest()
        fire_at = fire_time(call)
        return answer(
            override_view(await self._operations.overriding.skip(job_name(call.request), fire_at, asked.reason))
        )

    @Endpoint(
        "POST", "/jobs/{name}/fires/{instant}/move", "moveFire", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Move one fire time of a job",
        description="Its run keeps the fire time of the rule (`fire_at`), and is due at `to`.",
        body=MoveRequest,
        examples=(Example("two hours later", {"to": "2099-01-15T11:00:00+01:00", "reason": "late feed"}),),
        answers={200: (OverrideView, "The override")}, problems=PROBLEMS,
    )  # fmt: skip
    async def move(self, call: Call) -> Answer:
        asked: MoveRequest = call.body
        fire_at = fire_time(call)
        name = job_name(call.request)
        return answer(override_view(await self._operations.overriding.move(name, fire_at, asked.to, asked.reason)))

    @Endpoint(
        "DELETE", "/jobs/{name}/fires/{instant}", "unskipFire", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Take a skip or a move back",
        description="The fire time is as its rule has it; one that has come meanwhile is due at once.",
        answers={204: (None, "It is taken back")}, problems=PROBLEMS,
    )  # fmt: skip
    async def lift(self, call: Call) -> Answer:
        await self._operations.overriding.lift(job_name(call.request), fire_time(call))
        return no_content()

    @Endpoint(
        "GET", "/jobs/{name}/overrides", "listOverrides", tag="jobs", scope=Scope.JOBS_READ, query=PageQuery,
        summary="Fire times that are skipped or moved",
        description="Those in force: one that was dealt with is told by its run.",
        answers={200: (OverridePage, "One page")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("overrides", query.cursor, lambda text: _NUMBER.fullmatch(text) is not None)
        start = None if after is None else int(after)
        found, more = await self._operations.overriding.page(job_name(call.request), start, query.limit)
        return answer(
            OverridePage(override_views(found), write_cursor("overrides", None if more is None else str(more)))
        )


def fire_time(call: Call) -> datetime:
    """The instant that the path names. Raises InvalidContent."""
    text = str(call.request.path_params["instant"])
    try:
        if _INSTANT.fullmatch(text):
            found: datetime = msgspec.convert(text.replace(" ", "+"), Moment)
            to_instant(found)
            return found
    except (msgspec.ValidationError, CallerError):
        pass
    message = f"{text[:100]!r} is no instant; give one such as 2026-12-24T18:00:00+01:00, with `+` and `:` as they are"
    raise InvalidContent([Fault("instant", message)])
