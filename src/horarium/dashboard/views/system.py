"""Queues, nodes, channels and the audit."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec

from horarium.access import audit
from horarium.access.audit import AuditFilter
from horarium.access.roles import Scope
from horarium.api.reading import read_cursor, write_cursor
from horarium.dashboard.attention import Watching, is_lost
from horarium.dashboard.formats import counted
from horarium.dashboard.site import Answer, Page, Shown, Visit, Went
from horarium.operations.facade import Operations
from horarium.ports import PAGE_MAX
from horarium.services.claims import Claims
from horarium.wire.channels import shown_channel

AUDIT_SHOWN = 50
CURSOR_CHARS_MAX = 1_000


class SystemPages:
    """The pages about what runs the jobs."""

    def __init__(self, operations: Operations, claims: Claims, watching: Watching) -> None:
        self._operations = operations
        self._claims = claims
        self._watching = watching

    def pages(self) -> list[Page]:
        """The table."""
        return [
            Page(path="/queues", name="queues", handle=self.queues, scope=Scope.RUNS_READ, place="queues"),
            Page(path="/nodes", name="nodes", handle=self.nodes, scope=Scope.RUNS_READ, place="nodes"),
            Page(path="/channels", name="channels", handle=self.channels, scope=Scope.ADMIN, place="channels"),
            Page(
                path="/channels/{name}/test",
                name="channel-test",
                handle=self.test_channel,
                method="POST",
                scope=Scope.ADMIN,
                place="channels",
            ),
            Page(path="/audit", name="audit", handle=self.audit, scope=Scope.ADMIN, place="audit"),
        ]

    async def queues(self, visit: Visit) -> Answer:
        attention = await self._watching.look()
        queues = sorted(attention.stats.queues, key=lambda one: (not one.unserved, -one.due, one.queue))
        waiting = sum(queue.due for queue in queues)
        unserved = sum(queue.unserved for queue in queues)
        summary = f"{counted(len(queues), 'queue')} with unfinished runs, {counted(waiting, 'run')} due now."
        if unserved:
            summary += f" {unserved} served by no worker."
        values: dict[str, Any] = {"queues": queues[:500], "summary": summary, "waiters": self._claims.waiting}
        return Shown("queues.html", values)

    async def nodes(self, visit: Visit) -> Answer:
        attention = await self._watching.look()
        rows = [
            {"node": node, "lost": is_lost(node, visit.now), "stopped": node.stopped_at is not None}
            for node in attention.nodes
        ]
        rows.sort(key=lambda row: (not row["lost"], bool(row["stopped"])))
        return Shown("nodes.html", {"rows": rows})

    async def channels(self, visit: Visit) -> Answer:
        page = await self._operations.channels.page(None, PAGE_MAX)
        rows = []
        for name, channel in page.items:
            shown = shown_channel(name, channel)
            where = shown.get("url") or ", ".join(shown.get("to") or ())
            rows.append({"name": name, "type": shown["type"], "where": where, "system": shown["system"]})
        return Shown("channels.html", {"rows": rows})

    async def test_channel(self, visit: Visit) -> Answer:
        run = await self._operations.channels.test(visit.path_name)
        return Went(f"/runs/{run.id}", f"A test goes out on {visit.path_name}; this run says what became of it.")

    async def audit(self, visit: Visit) -> Answer:
        asked = {name: visit.text(name).strip() for name in ("actor", "action", "object")}
        where = AuditFilter(
            actor=asked["actor"] or None, action=asked["action"] or None, object=asked["object"] or None
        )
        cursor = visit.text("cursor")
        after = read_cursor("audit", cursor, lambda text: 0 < len(text) <= CURSOR_CHARS_MAX) if cursor else None
        page = await audit.page(self._operations.store, where, after, AUDIT_SHOWN)
        more = write_cursor("audit", page.next_after)
        kept = [(name, value) for name, value in asked.items() if value]
        rows = [{"entry": entry, "before": _text(entry.before), "after": _text(entry.after)} for entry in page.items]
        link = "/audit?" + urlencode([*kept, ("cursor", more)]) if more else None
        return Shown("audit.html", {"rows": rows, "asked": asked, "more": link, "filtered": bool(kept)})


def _text(value: Any) -> str | None:
    if value is None or value is msgspec.UNSET:
        return None
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8", "replace")
