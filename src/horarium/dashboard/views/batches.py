"""Batches: how far each is, its runs, and what follows from it; closed, cancelled, and its failed runs done again."""

from __future__ import annotations

import asyncio
from typing import Any

from horarium.access.roles import Scope
from horarium.api.batches import DIGITS_MAX
from horarium.api.reading import write_cursor
from horarium.clock import Instant
from horarium.dashboard.formats import address
from horarium.dashboard.marks import CANCELLED, COMPLETED, FAILED, PENDING, mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.job import run_row
from horarium.model import Run, State
from horarium.model.batches import BATCH, Batch, BatchFollow, BatchOccasion, BatchState, BatchTold
from horarium.model.identity import is_run_id
from horarium.ports import PAGE_MAX
from horarium.rules.batches import told_of
from horarium.rules.chains import chain_key, then_key
from horarium.triggers.words import counted

SHOWN = 50
LOOKS_MAX = 10
TEXT_CHARS_MAX = 200
ROUNDS_SHOWN = 5
"""Rounds of a batch, the last ones, whose follow-ups are looked for."""
MARKS = {"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED, "unfinished": PENDING}
OCCASIONS = {
    BatchOccasion.FAILED: "At the first failure",
    BatchOccasion.COMPLETED: "When all have completed",
    BatchOccasion.FINISHED: "When all have ended",
}


class BatchPages(Pages):
    """The pages at `/batches` and below."""

    @Page("GET", "/batches", "batches", scope=Scope.RUNS_READ, place="batches")
    async def show_all(self, visit: Visit) -> Answer:
        text = visit.text("q").strip()[:TEXT_CHARS_MAX]
        if is_run_id(text.lower()):
            return Went(f"/batches/{text.lower()}")
        given = visit.one_of("state", [each.value for each in BatchState])
        state = BatchState(given) if given else None
        found, beyond = await self._found(state, text, visit.after("batches", is_run_id))
        more = write_cursor("batches", beyond)
        return Shown(
            "batches.html",
            {
                "rows": [_row(batch) for batch in found],
                "failed_mark": FAILED,
                "search": text,
                "state": state,
                "chips": [
                    (
                        each.value.capitalize(),
                        each is state,
                        address("/batches", q=text, state=None if each is state else each),
                    )
                    for each in BatchState
                ],
                "searched_all": beyond is None,
                "more": address("/batches", q=text, state=state, cursor=more) if more else None,
            },
        )

    async def _found(self, state: BatchState | None, text: str, after: str | None) -> tuple[list[Batch], str | None]:
        """A page of them, and where the next one begins. With a text, a bounded number is looked at."""
        found: list[Batch] = []
        for _ in range(LOOKS_MAX if text else 1):
            page = await self._operations.batches.page(state, after, PAGE_MAX if text else SHOWN, text)
            found += page.items
            after = page.next_after
            if after is None or len(found) >= SHOWN:
                break
        return found, after

    @Page("GET", "/batches/{id}", "batch", scope=Scope.RUNS_READ, place="batches")
    async def show(self, visit: Visit) -> Answer:
        id = visit.path_id("batch")
        batch = await self._operations.batches.get(id)
        only = State.FAILED if visit.one_of("state", [State.FAILED.value]) else None
        after = visit.after("batch", lambda text: text.isdecimal() and len(text) <= DIGITS_MAX)
        runs, beyond = await self._members(id, only, after)
        more = write_cursor("batch", beyond)
        row = _row(batch)
        return Shown(
            "batch.html",
            {
                **{name: value for name, value in row.items() if name != "counts"},
                "ends": [(MARKS[name], count) for name, count in row["counts"].items()],
                "passed": int(after or 0),
                "only": only,
                "runs": [run_row(run, visit.now) for run in runs],
                "more": address(f"/batches/{id}", state=only, cursor=more) if more else None,
                "follows": await self._follows(batch, visit.now),
                "can": visit.may(Scope.RUNS_DEFINE),
            },
        )

    async def _members(self, id: str, only: State | None, after: str | None) -> tuple[list[Run], str | None]:
        """A page of its runs, and where the next one begins; of one state alone, a bounded number is looked at."""
        found: list[Run] = []
        for _ in range(LOOKS_MAX if only else 1):
            page = await self._operations.batches.runs(id, after, PAGE_MAX if only else SHOWN)
            found += (run for run in page.items if only is None or run.state is only)
            after = page.next_after
            if after is None or len(found) >= SHOWN:
                break
        return found, after

    async def _follows(self, batch: Batch, now: Instant) -> list[dict[str, Any]]:
        """What is to follow, with the newest run of it that is kept."""
        wanted: list[tuple[BatchOccasion, BatchFollow, int | None]] = [
            (occasion, follow, None) for occasion, follows in batch.on.items() for follow in follows
        ]
        for number, each in enumerate(batch.then):
            named = BatchFollow(handler=each.queue.removeprefix("handler/"))
            wanted.append((BatchOccasion.COMPLETED, named, number))
        rows = []
        for occasion, follow, index in wanted:
            rounds = range(batch.round, max(batch.round - ROUNDS_SHOWN, 0), -1)
            about = [f"{BATCH}{batch.id}/{each}" for each in rounds]
            keys = [f"{each}/{occasion}/{follow.action}" if index is None else then_key(each, index) for each in about]
            keys = [chain_key(1, key) for key in keys] if follow.trigger is not None else keys
            made = await asyncio.gather(*(self._operations.store.get_run_by_key(key) for key in keys))
            run = next(filter(None, made), None)
            rows.append(
                {
                    "occasion": OCCASIONS[occasion],
                    "follow": follow,
                    "run": run,
                    "mark": None if run is None else mark_of(run, now),
                    "instead": _instead(batch, occasion),
                }
            )
        return rows

    # ---- actions

    @Page("POST", "/batches/{id}/close", "batch-close", scope=Scope.RUNS_DEFINE)
    async def close(self, visit: Visit) -> Answer:
        batch = await self._operations.batches.close(visit.path_id("batch"))
        return Went(f"/batches/{batch.id}", "It takes no more runs, and finishes once all have ended.")

    @Page("POST", "/batches/{id}/cancel", "batch-cancel", scope=Scope.RUNS_DEFINE)
    async def cancel(self, visit: Visit) -> Answer:
        before = told_of(await self._operations.batches.get(visit.path_id("batch")))
        reason = visit.text("reason").strip() or f"its batch was cancelled by {visit.principal.name}"
        batch = await self._operations.batches.cancel(before.batch, reason)
        after = told_of(batch)
        said = f"{counted(max(after.cancelled - before.cancelled, 0), 'run')} cancelled."
        if left := _left(after):
            said += f" {counted(left, 'run')} {'was' if left == 1 else 'were'} asked to stop."
        return Went(f"/batches/{batch.id}", said)

    @Page("POST", "/batches/{id}/retry", "batch-retry", scope=Scope.RUNS_DEFINE)
    async def retry(self, visit: Visit) -> Answer:
        before = told_of(await self._operations.batches.get(visit.path_id("batch")))
        batch = await self._operations.batches.retry(before.batch)
        again = max(before.failed - told_of(batch).failed, 0)
        return Went(
            f"/batches/{batch.id}", f"{counted(again, 'run')} will run again, in the place of those that failed."
        )


def _left(told: BatchTold) -> int:
    return max(told.total - told.completed - told.failed - told.cancelled, 0)


def _row(batch: Batch) -> dict[str, Any]:
    """What a line and a page show: its counts, and how far it is in percent, whole ones that have passed."""
    told = told_of(batch)
    left = _left(told)
    counts = {"completed": told.completed, "failed": told.failed, "cancelled": told.cancelled, "unfinished": left}
    percent = None if not told.total else 100 * (told.total - left) // told.total
    return {"batch": batch, "counts": counts, "total": told.total, "left": left, "percent": percent,
            "ended": told.total - left, "parts_of": _parts(counts, told.total)}  # fmt: skip


def _parts(counts: dict[str, int], total: int) -> list[tuple[str, float, float]]:
    """The pieces of the bar: kind, begin and width in percent. None that counts anything is too thin to be seen."""
    found, x = [], 0.0
    for name in ("completed", "failed", "cancelled"):
        if counts[name]:
            width = min(max(100 * counts[name] / total, 1.0), 100 - x)
            found.append((name, round(x, 2), round(width, 2)))
            x += width
    return found


def _instead(batch: Batch, occasion: BatchOccasion) -> str:
    """In place of its run where there is none: whether it is still to come."""
    came = {
        BatchOccasion.FAILED: batch.told_failed > 0,
        BatchOccasion.COMPLETED: batch.finished_at is not None and batch.completed == batch.total,
        BatchOccasion.FINISHED: batch.finished_at is not None,
    }[occasion]
    if came:
        return "its run is not kept any more, or not made yet"
    return "not yet" if batch.finished_at is None else "did not come about"
