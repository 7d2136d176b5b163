"""The endpoints under /feeds, and the addresses that calendar programs ask for."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from horarium.access.roles import Scope
from horarium.api.answers import NOT_MODIFIED, Ready
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.reading import header, is_name, own_url, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.clock import to_datetime
from horarium.errors import NotFound
from horarium.model import Name
from horarium.model.feeds import Feed
from horarium.model.labels import Labels
from horarium.operations.facade import Operations

KEY_CHARS_MAX = 100
ENDING = ".ics"
CALENDAR_TYPE = "text/calendar"
NAMES_MAX = 200
_TAG = re.compile(r'"([^"]*)"')


class FeedRequest(Struct, forbid_unknown_fields=True):
    """Which jobs: all with these labels, or those of these names; neither: all."""

    name: Name
    labels: Labels = {}
    jobs: Annotated[list[Name], Meta(max_length=NAMES_MAX)] = []


class FeedView(Struct):
    """A feed, without its address. `by`: who made it; `ended`: with the key of that, so that its address opens nothing
    any more."""

    name: str
    labels: dict[str, str]
    jobs: tuple[str, ...]
    created_at: datetime
    by: str
    ended: bool


class NewFeedView(FeedView, kw_only=True):
    """A feed with its address, which is shown this once."""

    url: str


class FeedPage(Page[FeedView]):
    """One page of feeds, by name."""


EXAMPLES = (Example("jobs of a team", {"name": "billing", "labels": {"team": "billing"}}),)


class FeedsApi(Handlers):
    def __init__(self, operations: Operations, public_url: str | None) -> None:
        self._feeds, self._public_url = operations.feeds, public_url

    @Endpoint(
        "POST", "/feeds", "createFeed", tag="feeds", scope=Scope.JOBS_WRITE,
        summary="Make an address that calendar programs subscribe to",
        description="The address is shown this once; only a digest of its key is kept. Who knows it sees the "
        "jobs of the feed, their fire times and how their runs ended, without an API key. It opens nothing any "
        "more once the named key that made it is revoked, or its time is over.",
        body=FeedRequest, examples=EXAMPLES,
        answers={201: (NewFeedView, "The feed, with its address")}, problems=("already_exists",),
    )  # fmt: skip
    async def create(self, call: Call) -> Answer:
        asked: FeedRequest = call.body
        feed, key = await self._feeds.create(asked.name, asked.labels, asked.jobs)
        url = f"{own_url(self._public_url, call.request)}/feed/{key}{ENDING}"
        shown = NewFeedView(*_shown(feed), ended=False, url=url)
        return answer(shown, 201, [("location", url)])

    @Endpoint(
        "GET", "/feeds", "listFeeds", tag="feeds", scope=Scope.JOBS_READ, query=PageQuery, bound=True, costly=True,
        summary="Feeds, by name, without their addresses",
        answers={200: (FeedPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("feeds", query.cursor, is_name)
        page = await self._feeds.page(after, query.limit, call.principal)
        items = [FeedView(*_shown(feed), ended) for feed, ended in page.items]
        return answer(FeedPage(items, write_cursor("feeds", page.next_after)))

    @Endpoint(
        "DELETE", "/feeds/{name}", "revokeFeed", tag="feeds", scope=Scope.JOBS_WRITE,
        summary="Revoke a feed: its address is gone",
        answers={204: (None, "It is gone")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def revoke(self, call: Call) -> Answer:
        name: str = call.request.path_params["name"]
        if not is_name(name):
            raise NotFound(f"there is no feed {name[:200]!r}")
        await self._feeds.revoke(name)
        return no_content()

    @Endpoint(
        "GET", "/feed/{name}", "showFeed", tag="feeds", costly=True, alone=True, open=True, media_type=CALENDAR_TYPE,
        summary="A feed as iCalendar (RFC 5545)",
        description="`name` is the key of the feed, followed by `.ics`. Runs of the last 30 days with their "
    "outcome, and fire times of the next 60 days: 100 of each job, 5,000 in all, those that lie the nearest. "
    "Its `ETag` stays while its events do.",
        answers={200: (str, "The calendar"), 304: (None, "It is as the caller has it (`If-None-Match`)")},
        problems=("not_found",),
    )  # fmt: skip
    async def show(self, call: Call) -> Answer:
        name: str = call.request.path_params["name"]
        key = name.removesuffix(ENDING)
        if key == name or len(key) > KEY_CHARS_MAX:
            raise NotFound("there is no feed at this address")
        asked = header(call.request.scope, b"if-none-match") or ""
        known = _TAG.findall(asked)
        tag, text = await self._feeds.text(key, known)
        headers = [("cache-control", "private, max-age=300"), ("etag", f'W/"{tag}"')]
        if tag in known or asked.strip() == "*":
            return Ready(status=NOT_MODIFIED, headers=headers)
        return Ready(text, media_type=f"{CALENDAR_TYPE}; charset=utf-8", headers=headers)


def _shown(feed: Feed) -> tuple[str, dict[str, str], tuple[str, ...], datetime, str]:
    return feed.name, feed.labels, feed.jobs, to_datetime(feed.created_at), feed.by
