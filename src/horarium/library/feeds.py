"""Addresses for calendar programs, as a `Scheduler` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horarium.clock import to_text
from horarium.library.channels import converted
from horarium.library.named import Part, in_name_of_actor
from horarium.model import Name
from horarium.model.feeds import Feed
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX


class FeedMethods(Part):
    """The feeds of a scheduler, as plain data: the fields of docs/feeds.md."""

    @in_name_of_actor
    async def create_feed(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        jobs: Sequence[str] = (),
        actor: str | None = None,
    ) -> dict[str, Any]:
        """A new feed of jobs with these labels, or of these names. `path`, under the address of a server on the same
        store, is shown this once. Raises AlreadyExists, InvalidRequest."""
        feed, key = await self._operations.feeds.create(converted(name, Name, "name"), labels or {}, jobs)
        return {**_shown(feed, False), "path": f"/feed/{key}.ics"}

    async def list_feeds(self) -> list[dict[str, Any]]:
        """All feeds, by name, without their addresses; `ended`: with the key that made it."""
        pages = pages_of(lambda after: self._operations.feeds.page(after, PAGE_MAX))
        return [_shown(*listed) async for page in pages for listed in page]

    @in_name_of_actor
    async def revoke_feed(self, name: str, *, actor: str | None = None) -> None:
        """Its address is gone. Raises NotFound."""
        await self._operations.feeds.revoke(name)


def _shown(feed: Feed, ended: bool) -> dict[str, Any]:
    made = {"created_at": to_text(feed.created_at), "by": feed.by, "ended": ended}
    return {"name": feed.name, "labels": feed.labels, "jobs": feed.jobs, **made}
