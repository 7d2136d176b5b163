"""Server-sent events: a stream that says that something changed (the WHATWG HTML standard, section 9.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from horarium.access.roles import LOCAL, Principal
from horarium.api.answers import Ready
from horarium.api.problems import TooManyWaiters
from horarium.api.routing import AnyRequest
from horarium.services.polling.news import AWAY, News

EVENT_STREAM = "text/event-stream"
AGAIN_MILLISECONDS = 2_000


async def _lines(news: News, caller: str, *, paced: bool) -> AsyncIterator[bytes]:
    yield f"retry: {AGAIN_MILLISECONDS}\n\n".encode()
    async for kinds in news.listen(caller, paced=paced):
        if paced and AWAY in kinds:
            yield b"event: away\ndata: {}\n\n"
        elif kinds:
            data = msgspec.json.encode({"changed": sorted(kinds - {AWAY})})
            yield b"event: changed\ndata: " + data + b"\n\n"
            if paced:
                await news.rest()
        else:
            yield b": all is well\n\n"


def event_stream(request: AnyRequest, news: News, caller: Principal, *, paced: bool = False) -> Response:
    """The stream as an answer; `paced`: for pages, each of which looks again at all news. Raises TooManyWaiters."""
    asks = "" if caller == LOCAL else f"{caller.kind} {caller.subject}"
    if news.full(asks):
        raise TooManyWaiters("too many listeners are connected; try again later")
    if request.method == "HEAD":
        return Ready(media_type=EVENT_STREAM)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_lines(news, asks, paced=paced), media_type=EVENT_STREAM, headers=headers)
