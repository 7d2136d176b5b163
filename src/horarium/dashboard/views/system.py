"""Queues, nodes and the audit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import msgspec
from msgspec import Struct

from horarium.access import audit
from horarium.access.audit import AuditFilter
from horarium.access.roles import Scope
from horarium.api.reading import write_cursor
from horarium.clock import HOUR, Instant
from horarium.dashboard.attention import Watching, usual_of
from horarium.dashboard.differences import differences
from horarium.dashboard.formats import address
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit
from horarium.model import CLAIMED, Node, Run
from horarium.operations.facade import Operations
from horarium.operations.looking.attending import is_lost
from horarium.ports import PAGE_MAX, QueueStats, RunFilter
from horarium.services.polling.claims import Claims
from horarium.triggers.words import counted

AUDIT_SHOWN = 50
CURSOR_CHARS_MAX = 1_000
QUEUES_SHOWN = 100
RATED_MAX = 50
RATED_RUNS = 50
PULLED = "pull/"
OURS = frozenset({"version", "updated_at", "next_fire_at"})


class Held(Struct):
    """The claimed runs of one worker. `queues`: of these; `oldest`: since when. `done_at`: when they usually end;
    None: not known of all."""

    worker: str
    runs: int = 0
    queues: set[str] = set()
    oldest: Instant | None = None
    done_at: Instant | None = 0

    def add(self, run: Run, usual: Instant | None) -> None:
        """Count a run, which usually takes that long."""
        self.runs += 1
        if usual is None or run.started_at is None:
            self.done_at = None
        elif self.done_at is not None:
            self.done_at = max(self.done_at, run.started_at + usual)
        self.queues.add(run.queue)
        if run.started_at is not None and (self.oldest is None or run.started_at < self.oldest):
            self.oldest = run.started_at


def _by_worker(one: Held) -> str:
    return one.worker


class SystemPages(Pages):
    """The pages about the system itself: queues, nodes, channels."""

    def __init__(self, operations: Operations, claims: Claims, watching: Watching) -> None:
        self._operations = operations
        self._claims = claims
        self._watching = watching

    async def _held(self) -> tuple[dict[str, Held], bool]:
        """Claimed runs by worker; whether there are more than were read."""
        page = await self._operations.store.list_runs(RunFilter(states=CLAIMED), None, PAGE_MAX)
        held: dict[str, Held] = {}
        names = list(dict.fromkeys(run.job for run in page.items if run.job))
        usual = await usual_of(self._operations, names, self._operations.clock.now())
        for run in page.items:
            if run.worker is not None:
                held.setdefault(run.worker, Held(run.worker, queues=set())).add(run, usual.get(run.job or ""))
        return held, page.next_after is not None

    # ---- queues

    @Page("GET", "/queues", "queues", scope=Scope.RUNS_READ, place="queues")
    async def queues(self, visit: Visit) -> Answer:
        attention = await self._watching.look()
        (held, _), waiters = await self._held(), (await self._claims.waiting_everywhere()).queues
        counted = {one.queue for one in attention.stats.queues}
        others = () if visit.principal.bound else waiters.keys() - counted
        idle = [QueueStats(name, 0, 0, 0, None) for name in others]
        queues = sorted([*attention.stats.queues, *idle], key=lambda one: (not one.unserved, -one.due, one.queue))
        shown = queues[:QUEUES_SHOWN]
        rates = await asyncio.gather(*(self._rate(queue.queue, visit.now) for queue in shown[:RATED_MAX]))
        workers: dict[str, list[str]] = defaultdict(list)
        for one in held.values():
            for name in one.queues:
                workers[name].append(one.worker)
        rows = [
            {
                "queue": queue,
                "rate": rates[place] if place < RATED_MAX else None,
                "served": _served(queue, sorted(workers[queue.queue]), waiters.get(queue.queue, 0)),
            }
            for place, queue in enumerate(shown)
        ]
        values: dict[str, Any] = {"rows": rows, "more": len(queues) - len(shown), "summary": _summary_of(queues)}
        return Shown("queues.html", values)

    async def _rate(self, queue: str, now: Instant) -> float | None:
        """How many of its runs were due in an hour, by its last ones of an hour."""
        where = RunFilter(queue=queue, since=max(now - HOUR, 0), until=now + 1)
        page = await self._operations.store.list_runs(where, None, RATED_RUNS)
        if not page.items:
            return None
        span = HOUR if page.next_after is None else max(now - page.items[-1].fire_at, 1)
        return len(page.items) * HOUR / span

    # ---- nodes

    @Page("GET", "/nodes", "nodes", scope=Scope.RUNS_READ, place="nodes", tells_all=True)
    async def nodes(self, visit: Visit) -> Answer:
        attention, (held, more) = await self._watching.look(), await self._held()
        names = {node.name for node in attention.nodes}
        drained = {
            hold.scope.worker: hold for hold in await self._operations.holds.in_force() if hold.scope.worker is not None
        }
        rows = [_node_row(node, held.get(node.name), visit.now) for node in attention.nodes]
        rows.sort(key=lambda row: (not row["lost"], row["stopped"], row["node"].name))
        idle = {name: Held(name) for name in drained if name not in names and name not in held}
        others = sorted((one for one in (*held.values(), *idle.values()) if one.worker not in names), key=_by_worker)
        up = sum(not row["lost"] and not row["stopped"] for row in rows)
        lost = sum(row["lost"] for row in rows)
        summary = f"{counted(up, 'node')} up" + (f", {lost} lost" if lost else "") + "."
        return Shown(
            "nodes.html", {"rows": rows, "workers": others, "drained": drained, "summary": summary, "more": more}
        )

    # ---- audit

    @Page("GET", "/audit", "audit", scope=Scope.ADMIN, place="audit", tells_all=True)
    async def audit(self, visit: Visit) -> Answer:
        asked = {name: visit.text(name).strip() for name in ("actor", "action", "object")}
        where = AuditFilter(
            actor=asked["actor"] or None, action=asked["action"] or None, object=asked["object"] or None
        )
        after = visit.after("audit", lambda text: 0 < len(text) <= CURSOR_CHARS_MAX)
        page = await audit.page(self._operations.store, where, after, AUDIT_SHOWN)
        more = write_cursor("audit", page.next_after)
        rows = [{"entry": entry, "link": _link(entry.object), "changed": _changed(entry)} for entry in page.items]
        link = address("/audit", cursor=more, **asked) if more else None
        return Shown("audit.html", {"rows": rows, "asked": asked, "more": link, "filtered": any(asked.values())})


def _served(queue: QueueStats, workers: list[str], waiting: int) -> str:
    """By whom, as far as this node knows."""
    if queue.unserved:
        return ""
    if not queue.queue.startswith(PULLED):
        return "the nodes"
    parts = [", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if len(workers) > 3 else "")] if workers else []
    if waiting:
        parts.append(f"{counted(waiting, 'worker that waits', 'workers that wait')} here")
    return "; ".join(parts) or "no worker of this node; others are not known here"


def _summary_of(queues: list[QueueStats]) -> str:
    waiting = sum(queue.due for queue in queues)
    unserved = sum(queue.unserved for queue in queues)
    summary = f"{counted(len(queues), 'queue')}, {counted(waiting, 'run')} due now."
    return f"{summary} {counted(unserved, 'queue is', 'queues are')} served by no worker." if unserved else summary


def _node_row(node: Node, held: Held | None, now: Instant) -> dict[str, Any]:
    return {"node": node, "lost": is_lost(node, now), "stopped": node.stopped_at is not None, "held": held}


def _link(thing: str) -> str:
    kind, _, name = thing.partition("/")
    return {"job": f"/jobs/{name}", "run": f"/runs/{name}", "channel": "/channels"}.get(kind, "")


def _changed(entry: audit.Entry) -> list[Any]:
    """Field by field, without what changes with every change."""
    found = differences(_plain(entry.before), _plain(entry.after))
    return [one for one in found if one.field not in OURS]


def _plain(value: Any) -> dict[str, Any]:
    if value is None or value is msgspec.UNSET:
        return {}
    plain = msgspec.json.decode(msgspec.json.encode(value))
    return plain if isinstance(plain, dict) else {"": plain}
