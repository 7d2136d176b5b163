"""Pings, as Healthchecks' clients send them: any of GET, HEAD and POST, with the key in the address.

They answer a plain `OK`, and 404 for a key that was not given out. No API key is asked for: who knows the address may
ping. A body that is too long is cut, never refused: what pings is often the end of a pipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from horarium.access.roles import Scope
from horarium.api.answers import Ready
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer, answer_text
from horarium.api.looking_schemas import PingQuery
from horarium.api.reading import own_url, peer_of, read_all
from horarium.api.routing import AnyRequest
from horarium.errors import NotFound
from horarium.model import NO_HEALTH, ExternalTarget, Health, Job
from horarium.operations.facade import Operations
from horarium.operations.jobs.jobs import has_many_parts, say_words
from horarium.operations.writing.gathering import Gathered
from horarium.ports import PAGE_MAX
from horarium.rules.pinging import Ping, Sign
from horarium.wire.views import JobView, healthy_text, job_view

PING_BODY_BYTES_MAX = 100_000
"""How much of a ping's body is kept."""
PING_BYTES_READ_MAX = 16 * 1024 * 1024
"""A body of more than this is refused: nothing that is read is kept beyond the first part."""
KEY_CHARS_MAX = 250
STATUS_MAX = 255
_STATUS = re.compile(r"[0-9]{1,3}", re.ASCII)


def ping_url(public_url: str | None, request: AnyRequest, key: str) -> str:
    """Where a job's pings go: under the address that is known to be ours, or under which this request came."""
    return f"{own_url(public_url, request)}/ping/{key}"


class Shown:
    """Shows a job, with its address for pings to those who may end its runs."""

    def __init__(self, operations: Operations, public_url: str | None) -> None:
        self._pings = operations.pings
        self._health = operations.health
        self._health_of = Gathered(operations.health, at_once=True, together=_a_page)
        self._public_url = public_url

    async def each(self, call: Call, jobs: Sequence[Job]) -> list[JobView]:
        return [await self._view(call, job, each) for job, each in zip(jobs, await self._health(jobs), strict=True)]

    async def _view(self, call: Call, job: Job, health: Health) -> JobView:
        await say_words(job)
        view = job_view(job, health)
        if Scope.RUNS_WRITE not in call.principal.scopes:
            return view  # who has the address ends runs
        key = await self._pings.key_of(job)
        if key is not None:
            view.ping_url = ping_url(self._public_url, call.request, key)
        return view

    async def answer(self, call: Call, job: Job, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """The answer that shows it. (201: it is new, so none of its runs has ended.)"""
        health = NO_HEALTH if status == 201 else await self._health_of(job)
        if isinstance(job.target, ExternalTarget):
            return answer(await self._view(call, job, health), status, headers)
        if has_many_parts(job):
            await say_words(job)
        return answer_text(healthy_text(job, health), status, headers)


def _a_page(jobs: Iterable[Job]) -> int:
    return sum(1 for _ in islice(jobs, PAGE_MAX))


class Pings(Handlers):
    async def ping(self, call: Call) -> Answer:
        request: AnyRequest = call.request
        key = str(request.path_params["name"])
        sign, status = _said(str(request.path_params.get("id", "")))
        job = await self._found(key)
        query: PingQuery = call.query
        body = await _body(request) if request.method == "POST" else ""
        await self._operations.pings.heard(job, Ping(sign, query.rid or None, status, body, peer_of(request.scope)))
        headers = [("ping-body-limit", str(PING_BODY_BYTES_MAX)), ("access-control-allow-origin", "*")]
        return Ready(b"OK", media_type="text/plain", headers=headers)

    async def _found(self, key: str) -> Job:
        if len(key) > KEY_CHARS_MAX:
            raise NotFound("there is no job with this ping key")
        job = await self._operations.pings.job_of(key)
        assert isinstance(job.target, ExternalTarget)
        return job

    def endpoints(self) -> list[Endpoint]:
        """The route table, outside of /api/v1."""
        return [self._endpoint(method, path) for path in PATHS for method in ("GET", "POST")]

    def _endpoint(self, method: str, path: str) -> Endpoint:
        name = ("ping" if method == "GET" else "postPing") + PATHS[path]
        return Endpoint(
            method, path, name, tag="pings", handle=self.ping, open=True, query=PingQuery, media_type="text/plain",
            body_bytes_max=PING_BYTES_READ_MAX,
            summary="A sign from work that is done elsewhere",
            description="As clients of Healthchecks send it: done; or, with another word at the end, `start`, `fail`, "
            "`log`, or an exit status from 0 to 255. Of a body, 100 kB are kept in the run's log.",
            answers={200: (str, "It was heard")}, problems=("not_found", "conflict"),
        )  # fmt: skip


PATHS = {"/ping/{name}": "", "/ping/{name}/{id}": "With"}


def _said(word: str) -> tuple[Sign, int | None]:
    """What the end of the address says."""
    if word in ("", Sign.START, Sign.FAIL, Sign.LOG):
        return Sign(word or Sign.SUCCESS), None
    if _STATUS.fullmatch(word) and int(word) <= STATUS_MAX:
        status = int(word)
        return (Sign.FAIL if status else Sign.SUCCESS), status
    raise NotFound(f"no ping ends in {word[:50]!r}; start, fail, log or an exit status from 0 to {STATUS_MAX} do")


async def _body(request: AnyRequest) -> str:
    kept = await read_all(request, PING_BYTES_READ_MAX, PING_BODY_BYTES_MAX)
    return kept.decode(errors="replace")
