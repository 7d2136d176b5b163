"""Delivery to HTTP endpoints: one request for each attempt, bounded in time, size and connections.

This module turns all that happens to a request into an outcome. It must never follow a redirect, use a proxy from the
environment, keep a cookie, open a compressed body, read a body to its end for its own sake, or put a URL's path or
query into an error. The request is in `message`, the meaning of an answer in `answers`, where a request may go in
`addresses`, how it goes there in `connections`. A request may be ended by its own limit, by a cancel, or by the
dispatcher, each with its own consequence and none with a connection left behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from horarium.clock import SECOND, Clock, Instant
from horarium.delivery.addresses import Endpoint, Guard, Lookup, check_url, parse_url
from horarium.delivery.answers import EndpointResponse, outcome
from horarium.delivery.connection import NoAnswer
from horarium.delivery.connections import Connections
from horarium.delivery.message import (
    Reporting,
    Request,
    build,
    build_cancel,
    check_headers,
    check_method,
    encode,
    report_url,
)
from horarium.delivery.places import HostPlaces
from horarium.delivery.secrets import MissingSecret, Secrets
from horarium.delivery.signing import check_secret
from horarium.errors import CallerError, InvalidJob, LeaseLost, Outage
from horarium.model import Cancelled, Completion, Deferred, Failed, HttpTarget, Outcome, Run, Succeeded, in_wall_time
from horarium.ports import Assignment, Control

TOTAL_MAX = 256
PER_HOST_MAX = 64
PATIENCE_SECONDS = 2.0
PUT_OFF_SECONDS = 5
CANCEL_SECONDS = 5.0
POST_SECONDS = 15.0

_log = logging.getLogger(__name__)


def check_target(target: HttpTarget, allow_private: bool) -> None:
    """Raise InvalidJob, with the field, unless requests can be made of this target."""
    check_url(target.url, allow_private)
    if target.cancel_url is not None:
        check_url(target.cancel_url, allow_private, field="target.cancel_url")
    check_method(target.method)
    check_headers(target.headers)
    if isinstance(target.signing_secret, str):
        check_secret(target.signing_secret, field="target.signing_secret", error=InvalidJob)


class HttpDelivery:
    """Performs attempts of runs with an `HttpTarget`.

    `signing_secret` signs where a target has none of its own. `report_url` is the base of our own API as endpoints
    reach it (scheme, host and port), for targets that call back; `report_key` makes the key for a run's reports, where
    the API asks for one. `lookup` resolves names (default: the system's).
    """

    def __init__(
        self,
        clock: Clock,
        *,
        allow_private: bool = False,
        signing_secret: str | None = None,
        report_url: str | None = None,
        report_key: Callable[[str], str] | None = None,
        lookup: Lookup | None = None,
        total_max: int = TOTAL_MAX,
        per_host_max: int = PER_HOST_MAX,
        secrets: Secrets | None = None,
    ) -> None:
        self.secrets = secrets or Secrets()
        if signing_secret is not None:
            check_secret(signing_secret)
        self._clock = clock
        self._secret = signing_secret
        self._report_url = report_url
        self._report_key = report_key
        self._guard = Guard(allow_private=allow_private, lookup=lookup)
        self._places = HostPlaces(total=total_max, per_host=per_host_max)
        self._connections = Connections(self._guard)

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        """See `ports.Target`. Deferred if the host is busy with as many requests as one host may have."""
        target = _target(assignment)
        if target is None:
            return Failed("the run has no HTTP target; its job was changed or deleted", retryable=False)
        try:
            target = self.secrets.target(target)
            endpoint = parse_url(target.url)
        except MissingSecret as missing:
            return Failed(str(missing))
        except CallerError as error:
            return Failed(error.message, retryable=False)
        host = endpoint.authority
        if not await self._places.take(host, PATIENCE_SECONDS):
            until = self._clock.now() + PUT_OFF_SECONDS * SECOND
            return Deferred(until, f"{host} is busy with as many requests as one host may have")
        try:
            return Cancelled() if control.cancelled else await self._attempt(target, endpoint, assignment.run, control)
        finally:
            self._places.give(host)

    async def notify_cancel(self, target: HttpTarget, run: Run) -> bool:
        """Tell the target's `cancel_url` (if it has one) that the run is to stop. Takes at most five seconds.
        False: it did not answer, or asked us to try again (429, 5xx); that is logged, nothing else."""
        if target.cancel_url is None:
            return True
        peer = "its cancel_url"
        try:
            endpoint = parse_url(target.cancel_url, field="target.cancel_url")
            peer = endpoint.authority
            secret = self._secret_for(self.secrets.target(target), run)
            request = build_cancel(endpoint.path, run, now=self._clock.now(), secret=secret)
            async with asyncio.timeout(CANCEL_SECONDS):
                status = (await self._exchange(endpoint, request)).status
        except Exception as error:
            _log.warning("run %s: %s did not take the cancel: %s", run.id, peer, type(error).__name__)
            return False
        taken = status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS
        if not taken:
            _log.warning("run %s: %s did not take the cancel: answered %d", run.id, peer, status)
        return taken

    async def post(self, url: str, build: Callable[[str, Instant], Request]) -> Outcome:
        """Send what `build` makes for this path, at this instant. Every failure is an outcome."""
        try:
            endpoint = parse_url(url, field="url")
        except CallerError as error:
            return Failed(error.message, retryable=False)
        now = self._clock.now()
        try:
            async with asyncio.timeout(POST_SECONDS):
                answer = await self._exchange(endpoint, build(endpoint.path, now))
        except NoAnswer as none:
            return Failed(none.error, retryable=none.retryable)
        except TimeoutError:
            return Failed(f"timed out after {POST_SECONDS:g} s: {endpoint.authority} did not finish its answer")
        return outcome(HttpTarget(url=url), answer, now) or Succeeded()

    async def close(self) -> None:
        await self._connections.close()
        await self._guard.close()

    def _secret_for(self, target: HttpTarget, run: Run) -> str | None:
        """The server's own secret vouches for jobs; who adds a one-off run chooses its address and its body."""
        own = target.signing_secret
        return self.secrets.signing(own) if own else (None if run.job is None else self._secret)

    # -- one attempt

    async def _attempt(self, target: HttpTarget, endpoint: Endpoint, run: Run, control: Control) -> Outcome | None:
        now = self._clock.now()
        secret = self._secret_for(target, run)
        sent, reporting = run, Reporting()
        if target.completion is Completion.CALLBACK:
            sent, reporting = in_wall_time(run, self._clock), self._reporting(run)
        request = build(target, endpoint.path, sent, now=now, secret=secret, reporting=reporting)
        seconds = _seconds_left(target, run, self._clock.steady())
        try:
            async with asyncio.timeout(seconds) as scope:
                control.when_cancelled(lambda: _expire(scope))
                ended = outcome(target, await self._exchange(endpoint, request), self._clock.now())
        except NoAnswer as none:
            return Failed(none.error, retryable=none.retryable)
        except TimeoutError:
            if not control.cancelled:
                return Failed(f"timed out after {seconds:g} s: {endpoint.authority} did not finish its answer")
            await self.notify_cancel(target, run)
            return Cancelled()
        if ended is None:
            control.done()
            # From now on the endpoint has to send heartbeats: its time begins here. It may have reported already.
            with suppress(LeaseLost, Outage):
                await control.heartbeat()
        return ended

    def _reporting(self, run: Run) -> Reporting:
        url = None if self._report_url is None else report_url(self._report_url, run.id)
        return Reporting(url, None if self._report_key is None else self._report_key(run.id))

    async def _exchange(self, endpoint: Endpoint, request: Request) -> EndpointResponse:
        return await self._connections.ask(endpoint, request.method, encode(request, endpoint.host_header))


def _expire(scope: asyncio.Timeout) -> None:
    # The request may have ended in the same turn of the loop.
    with suppress(RuntimeError):
        scope.reschedule(0)


def _target(assignment: Assignment) -> HttpTarget | None:
    if assignment.job is not None:
        return assignment.job.target if isinstance(assignment.job.target, HttpTarget) else None
    target = assignment.run.policy.target if assignment.run.policy is not None else None
    return target if isinstance(target, HttpTarget) else None


def _seconds_left(target: HttpTarget, run: Run, steady: Instant) -> float:
    if run.deadline is None:
        return target.timeout_seconds
    return min(target.timeout_seconds, max((run.deadline - steady) / SECOND, 0.0))
