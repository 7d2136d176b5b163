"""Feeds: addresses for calendar programs, each shown once."""

from __future__ import annotations

from horarium.access.roles import Scope
from horarium.api.reading import is_name, own_url, write_cursor
from horarium.dashboard.formats import fault_in
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.jobs import read_search
from horarium.errors import HorariumError, InvalidRequest, NotFound
from horarium.operations.facade import Operations
from horarium.wire.faults import Fault

SHOWN = 100
FIELDS = ("name", "which")


class FeedPages(Pages):
    """The page at `/feeds`."""

    def __init__(self, operations: Operations, public_url: str | None) -> None:
        self._feeds, self._public_url = operations.feeds, public_url

    @Page("GET", "/feeds", "feeds", place="feeds")
    async def show(self, visit: Visit) -> Answer:
        return await self._page(visit)

    async def _page(self, visit: Visit, problem: Fault | None = None, url: str = "") -> Answer:
        after = None if visit.form else visit.after("feeds", is_name)
        page = await self._feeds.page(after, SHOWN, visit.principal)
        more = write_cursor("feeds", page.next_after)
        form = {name: visit.text(name) if problem else "" for name in FIELDS}
        values = {
            "rows": page.items,
            "more": f"/feeds?cursor={more}" if more else None,
            "form": form,
            "problem": problem,
            "url": url,
            "named": visit.text("name"),
        }
        return Shown("feeds.html", values, 422 if problem else 201 if url else 200)

    @Page("POST", "/feeds", "feed-made", scope=Scope.JOBS_WRITE, place="feeds")
    async def create(self, visit: Visit) -> Answer:
        name, which = visit.text("name").strip(), visit.text("which").strip()
        labels, _ = read_search(which)
        jobs = [word for word in which.replace(",", " ").split() if "=" not in word]
        try:
            if not is_name(name):
                raise InvalidRequest("name: letters, digits and . _ : @ -", field="name")
            if not all(map(is_name, jobs)):
                raise InvalidRequest("which: give names of jobs, or labels such as team=billing", field="which")
            _, key = await self._feeds.create(name, labels, jobs)
        except HorariumError as error:
            return await self._page(visit, fault_in(error, FIELDS, {"jobs": "which"}))
        return await self._page(visit, url=f"{own_url(self._public_url, visit.request)}/feed/{key}.ics")

    @Page("POST", "/feeds/revoke", "feed-revoke", scope=Scope.JOBS_WRITE)
    async def revoke(self, visit: Visit) -> Answer:
        name = visit.text("name")
        if not is_name(name):
            raise NotFound(f"there is no feed {name[:200]!r}")
        await self._feeds.revoke(name)
        return Went("/feeds", f"The address of {name} opens nothing any more.")
