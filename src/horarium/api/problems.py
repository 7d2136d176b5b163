"""Errors as RFC 9457 problem details: the one place where an error meets a status.

Every error has a `code` (see `errors`, and the refusals of HTTP itself below); `PROBLEMS` gives each code its status
and title. docs/api.md lists the same codes, and a test compares the two. Nothing of an unexpected exception is ever
shown: its text may hold a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import HTTPConnection

from horarium.api.answers import Ready
from horarium.api.limits import RETRY_AFTER_SECONDS
from horarium.clock import Clock
from horarium.errors import Forbidden, HorariumError, InvalidRequest, Outage
from horarium.triggers.words import counted
from horarium.wire.faults import Fault

PROBLEM_TYPE = "urn:horarium:problem:"
MEDIA_TYPE = "application/problem+json"

OUTAGE_OVER_SECONDS = 30.0
"""An outage that refused no request for this long is over: the next refusal is logged again."""

log = logging.getLogger("horarium.api")


class Problem(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An error (RFC 9457). `code` is stable; `field` names the offending input, `errors` all that were found;
    `position` says where in a rule's text; `jobs` names those that are in the way, `changed` what is no longer as it
    was read; `previous` and `next` are the fire times around an instant that is none."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    errors: list[Fault] | UnsetType = UNSET
    missing_scopes: list[str] | UnsetType = UNSET
    jobs: list[str] | UnsetType = UNSET
    previous: datetime | UnsetType | None = UNSET
    next: datetime | UnsetType | None = UNSET
    changed: list[str] | UnsetType = UNSET


PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed_body": (400, "The body can't be read"),
    "malformed_request": (400, "The request can't be read"),
    "invalid_cursor": (400, "The cursor can't be used"),
    "unauthorized": (401, "An API key is needed"),
    "forbidden": (403, "The caller may not do this"),
    "cross_site": (403, "Requests from other sites are refused"),
    "no_such_route": (404, "There is nothing at this address"),
    "not_found": (404, "There is no such thing"),
    "no_such_fire": (404, "The job has no fire time at that instant"),
    "method_not_allowed": (405, "This address does not take that method"),
    "conflict": (409, "The present state does not allow this"),
    "already_begun": (409, "The run of this fire time has begun"),
    "already_decided": (409, "A decision was made already"),
    "already_exists": (409, "The name is taken"),
    "calendar_in_use": (409, "Jobs use this calendar"),
    "plan_stale": (409, "What the plan was made for has changed since"),
    "lease_lost": (409, "The lease is lost"),
    "state_conflict": (409, "The present state does not allow this"),
    "request_timeout": (408, "The request did not arrive in time"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be JSON"),
    "wrong_host": (421, "This server is not addressed by that name"),
    "invalid": (422, "The content is invalid"),
    "invalid_job": (422, "The job is invalid"),
    "invalid_trigger": (422, "The trigger is invalid"),
    "too_expensive": (422, "The trigger takes too long to evaluate"),
    "invalid_request": (422, "The content is invalid"),
    "invalid_setting": (422, "The setting is invalid"),
    "over_budget": (429, "The key has asked for as much as it may"),
    "too_many_failures": (429, "Too many wrong keys came from this address"),
    "too_many_waiters": (429, "Too many workers are waiting"),
    "head_too_large": (431, "The request's head is too large"),
    "internal_error": (500, "Something went wrong here"),
    "outage": (503, "Something that we depend on does not answer"),
    "store_unavailable": (503, "The store does not answer"),
    "bus_unavailable": (503, "The message bus does not answer"),
    "issuer_unavailable": (503, "The issuer of access tokens does not answer"),
    "stopping": (503, "The server is about to stop"),
    "overloaded": (503, "More is asked than can be answered at once"),
    "too_many_connections": (503, "Too many connections are open"),
}
"""Code -> status, title."""

TOLD = ("missing_scopes", "jobs", "previous", "next", "changed")
"""Members of a problem that an error has under the same name."""
TRACED_EVERY_SECONDS = 60.0
PLACES_MAX = 100
"""Places in the code that are remembered as having raised."""
INTERNAL_DETAIL = "The request met a fault of the server. It is in the server's log; trying again may help."


# ---- refusals of HTTP itself ------------------------------------------------------------------------------------


class MalformedBody(InvalidRequest):
    """Not JSON, not UTF-8, or nested too deeply."""

    code = "malformed_body"


class NoSuchRoute(InvalidRequest):
    """No route has the path of this ASGI scope."""

    code = "no_such_route"

    def __init__(self, scope: Any) -> None:
        path: str = scope["path"]
        hint = "; clients of another scheduler come in by a door: horarium serve --door NAME"
        closed = path.startswith(("/api/", "/jobs/")) and not path.startswith("/api/v1/")
        super().__init__(f"{scope['method']} {path}: there is nothing at this address{hint if closed else ''}")


class MethodNotAllowed(InvalidRequest):
    """The path takes other methods."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        self.allow = ", ".join(allowed)
        super().__init__(f"{method} is not possible here; possible: {self.allow}")


class BodyTooLarge(InvalidRequest):
    """The body is larger than its route takes."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit:,} bytes, which is the most that is taken here")


class MalformedRequest(InvalidRequest):
    """A query string or a header that can't be read."""

    code = "malformed_request"


class InvalidCursor(InvalidRequest):
    """Not a cursor of this list."""

    code = "invalid_cursor"


class Unauthorized(InvalidRequest):
    """No API key, or a wrong one. `wrong`: a key was sent, and it is none of ours."""

    code = "unauthorized"

    def __init__(self, message: str, *, wrong: bool = False) -> None:
        super().__init__(message)
        self.wrong = wrong


class TooManyFailures(InvalidRequest):
    """Too many keys that came from this address were wrong."""

    code = "too_many_failures"


class WrongHost(InvalidRequest):
    """The request's `Host` is not a name of this server."""

    code = "wrong_host"


class BodyCutOff(InvalidRequest):
    """The client closed the connection before its body was complete. The answer is not read."""

    code = "malformed_body"


class CrossSite(InvalidRequest):
    """A browser sends this for a page of another site."""

    code = "cross_site"


class UnsupportedMediaType(InvalidRequest):
    """The body is of another type than JSON."""

    code = "unsupported_media_type"


class TooManyWaiters(Outage):
    """As many workers wait as one process serves."""

    code = "too_many_waiters"


class Stopping(Outage):
    """The server is about to stop: no more work is handed out here."""

    code = "stopping"


class Overloaded(Outage):
    """More is asked than is answered at a time, or this question takes too long."""

    code = "overloaded"


class ClientGone(Overloaded):
    """The client hung up before its question was answered. The answer is not read."""


class InvalidContent(InvalidRequest):
    """Content with one or more faults, all of them listed. `code`: `invalid_request`, or `invalid_job` for a job."""

    def __init__(self, faults: Sequence[Fault], code: str = "invalid_request") -> None:
        first = faults[0]
        super().__init__(f"{first.field}: {first.message}" if first.field else first.message, field=first.field or None)
        self.faults = list(faults)
        self.code = code


# ---- error -> answer --------------------------------------------------------------------------------------------


def problem_of(error: HorariumError) -> Problem:
    code = error.code
    if code not in PROBLEMS:
        return internal_problem()
    return make_problem(
        code,
        error.message,
        field=error.field or UNSET,
        position=UNSET if (position := getattr(error, "position", None)) is None else position,
        errors=getattr(error, "faults", UNSET),
        **{name: getattr(error, name, UNSET) for name in TOLD},
    )


def internal_problem() -> Problem:
    return make_problem("internal_error", INTERNAL_DETAIL)


def make_problem(code: str, detail: str, **more: Any) -> Problem:
    status, title = PROBLEMS[code]
    return Problem(type=PROBLEM_TYPE + code, title=title, status=status, detail=detail, code=code, **more)


class Refusals:
    """The answer to each kind of error, for one application. Of requests that an outage refuses, the log says the first
    one, and afterwards how many there were: clients that try again would fill it otherwise."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: float | None = None
        self._more = 0
        self._traced: dict[tuple[str, int], float] = {}

    def answer(self, request: HTTPConnection[Any], error: Exception) -> Ready:
        """The answer to an error. To a bug of ours: logged in full, shown not at all."""
        asked = f"{request.scope['method']} {request.scope['path']}"
        if not isinstance(error, HorariumError):
            self._trace("%s failed", asked, error)
            return _answer(internal_problem())
        problem = problem_of(error)
        if problem.status == 500:
            self._trace("%s: broken invariant", asked, error)
        elif isinstance(error, Outage) and not isinstance(error, TooManyWaiters | Stopping | Overloaded):
            self._note(asked, error)
        elif isinstance(error, BodyCutOff):
            log.debug("%s: %s", asked, error.message)
        return _answer(problem, _headers(problem, error))

    def _trace(self, message: str, asked: str, error: Exception) -> None:
        """Log a fault of ours: in full once a minute for each place that raises one, else in a line."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        now = self._clock.monotonic()
        if now - self._traced.get(place, -TRACED_EVERY_SECONDS) < TRACED_EVERY_SECONDS:
            log.error(message + ": %s, as in the traceback above", asked, type(error).__name__)
            return
        if len(self._traced) >= PLACES_MAX:
            self._traced.clear()
        self._traced[place] = now
        log.error(message, asked, exc_info=error)

    def _note(self, asked: str, error: HorariumError) -> None:
        before, self._last = self._last, self._clock.monotonic()
        if before is not None and self._last - before < OUTAGE_OVER_SECONDS:
            self._more += 1
            return
        if self._more:
            more = counted(self._more, "more request was", "more requests were")
            log.warning("%s refused in the outage before", more)
            self._more = 0
        log.warning("%s: %s; further requests are refused without a line here", asked, error.message)


def _headers(problem: Problem, error: HorariumError) -> list[tuple[str, str]]:
    headers = []
    if problem.status in (429, 503):
        seconds = max(RETRY_AFTER_SECONDS, ceil(getattr(error, "retry_after_seconds", 0)))
        headers.append(("retry-after", str(seconds)))
    if isinstance(error, MethodNotAllowed):
        headers.append(("allow", error.allow))
    if isinstance(error, Unauthorized):
        why = ', error="invalid_token"' if error.wrong else ""
        headers.append(("www-authenticate", f'Bearer realm="horarium"{why}'))
    if isinstance(error, Forbidden):
        scopes = f', scope="{" ".join(error.missing_scopes)}"' if error.missing_scopes else ""
        headers.append(("www-authenticate", f'Bearer realm="horarium", error="insufficient_scope"{scopes}'))
    return headers


def _answer(problem: Problem, headers: Sequence[tuple[str, str]] = ()) -> Ready:
    return Ready(msgspec.json.encode(problem), status=problem.status, media_type=MEDIA_TYPE, headers=headers)
