"""Channels: where news is sent, and what became of the last of it."""

from __future__ import annotations

from horarium.access.roles import Scope
from horarium.dashboard.attention import channel_of
from horarium.dashboard.marks import mark_of
from horarium.dashboard.site import Answer, Page, Shown, Visit, Went
from horarium.model import Run
from horarium.model.targets import NOTIFY_QUEUE
from horarium.operations.facade import Operations
from horarium.ports import PAGE_MAX, RunFilter
from horarium.wire.channels import shown_channel


class Channels:
    """The page at `/channels`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def pages(self) -> list[Page]:
        """The table."""
        place, scope = "channels", Scope.ADMIN
        return [
            Page(path="/channels", name="channels", handle=self.show, scope=scope, place=place, tells_all=True),
            Page(
                path="/channels/{name}/test", name="channel-test", handle=self.test, method="POST", scope=scope,
                place=place,
            ),
        ]  # fmt: skip

    async def show(self, visit: Visit) -> Answer:
        page = await self._operations.channels.page(None, PAGE_MAX)
        lasts = await self._lasts()
        rows = []
        for name, channel in page.items:
            shown = shown_channel(name, channel)
            last = lasts.get(name)
            rows.append(
                {
                    "name": name,
                    "type": shown["type"],
                    "where": shown.get("url") or ", ".join(shown.get("to") or ()),
                    "system": shown["system"],
                    "last": last,
                    "mark": None if last is None else mark_of(last, visit.now),
                }
            )
        return Shown("channels.html", {"rows": rows})

    async def _lasts(self) -> dict[str, Run]:
        """The newest notification of each channel, of the last ones of all."""
        page = await self._operations.store.list_runs(RunFilter(queue=NOTIFY_QUEUE), None, PAGE_MAX)
        found: dict[str, Run] = {}
        for run in page.items:
            found.setdefault(channel_of(run), run)
        return found

    async def test(self, visit: Visit) -> Answer:
        run = await self._operations.channels.test(visit.path_name)
        return Went(f"/runs/{run.id}", f"A test goes out on {visit.path_name}; this run says what became of it.")
