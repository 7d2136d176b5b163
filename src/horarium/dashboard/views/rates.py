"""Rate limits by key: what they allow, when they open, and limits that are set by hand."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import urlencode

from horarium.access.roles import Scope
from horarium.api.reading import write_cursor
from horarium.clock import HOUR, SECOND, to_datetime, to_instant, to_micros
from horarium.dashboard.attention import some_runs
from horarium.dashboard.formats import address, duration, fault_in, instant_of
from horarium.dashboard.shares import Share, shares_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import InvalidRequest
from horarium.model import Run, State
from horarium.policies import KEY_LENGTH_MAX, RATE_MAX, SECONDS_MAX
from horarium.ports import RunFilter
from horarium.rules.rates import rates_of, waits_for
from horarium.triggers.words import counted
from horarium.wire.faults import Fault
from horarium.wire.rates import RateView, is_key, override_of, rate_view, read_limit

SHOWN = 100
SHARES_SHOWN = 20
READ_MAX = 1_000
FIELDS = ("key", "limit", "burst", "until")


class Rates(Pages):
    """The page at `/rates`."""

    @Page("GET", "/rates", "rates", place="rates", tells_all=True)
    async def show(self, visit: Visit) -> Answer:
        return await self._page(visit, {name: visit.text(name) for name in FIELDS})

    async def _page(self, visit: Visit, form: dict[str, str], problem: Fault | None = None) -> Answer:
        prefix = "" if problem else visit.text("prefix").strip()[:KEY_LENGTH_MAX]
        after = None if problem else visit.after("rates", is_key)
        page = await self._operations.rates.page(prefix, after, SHOWN)
        rows = [_row(rate_view(key, bucket, self._operations.clock)) for key, bucket in page.items]
        rows.sort(key=lambda row: (row["opens"] is None, not row["view"].overridden, row["view"].key))
        counts, shares = (
            await self._shares([row["view"].key for row in rows if row["opens"] is not None], visit)
            if visit.may(Scope.RUNS_READ)
            else ({}, [])
        )
        shut, more = sum(row["opens"] is not None for row in rows), write_cursor("rates", page.next_after)
        values = {
            "rows": rows,
            "waits": counts,
            "shares": shares,
            "heading": f"{counted(shut, 'key')} {'is' if shut == 1 else 'are'} shut" if shut else "No key is shut",
            "prefix": prefix,
            "more": address("/rates", prefix=prefix, cursor=more) if more else None,
            "form": form,
            "problem": problem,
        }
        return Shown("rates.html", values, 422 if problem else 200)

    async def _shares(self, keys: list[str], visit: Visit) -> tuple[dict[str, int], list[tuple[str, Share]]]:
        """How many runs wait in the line of each of these keys, which are shut, and which fairness keys these have and
        those that began; those that began are read where any that waits has one."""
        waiting, ran = list[Run](), list[Run]()
        if keys:
            where = RunFilter(states=frozenset({State.PENDING}))
            waiting, _ = await some_runs(self._operations, where, READ_MAX)
        if any(run.fair is not None for run in waiting):
            where = RunFilter(since=max(visit.now - HOUR, 0), until=visit.now + SECOND)
            ran, _ = await some_runs(self._operations, where, READ_MAX)
        ran = list({run.id: run for run in (*ran, *waiting)}.values())
        lines, under = defaultdict[str | None, list[Run]](list), defaultdict[str, list[Run]](list)
        for run in waiting:
            lines[waits_for(run)].append(run)
        for run in ran:
            for key in rates_of([run]):
                under[key].append(run)
        shares = [
            (key, share) for key in keys for share in shares_of(lines[key], under[key], {}, visit.now)[:SHARES_SHOWN]
        ]
        return {key: len(lines[key]) for key in keys}, shares

    @Page("POST", "/rates", "rate-set", scope=Scope.JOBS_WRITE, place="rates")
    async def set(self, visit: Visit) -> Answer:
        form = {name: visit.text(name).strip() for name in FIELDS}
        try:
            key, until = form["key"], instant_of(form["until"], "until", visit.zone)
            if not is_key(key):
                raise InvalidRequest(f"key: give 1 to {KEY_LENGTH_MAX} characters", field="key")
            limit = read_limit(form["limit"])
            if not (1 <= limit["max"] <= RATE_MAX and 1 <= limit["per_seconds"] <= SECONDS_MAX):
                raise InvalidRequest("limit: at least 1 in at least a second, such as 100/1m", field="limit")
            burst = int(form["burst"]) if form["burst"].isdecimal() and len(form["burst"]) < 10 else None
            if form["burst"] and not burst:
                raise InvalidRequest("burst: give a number, or leave it out", field="burst")
            end = None if until is None else to_datetime(until)
            await self._operations.rates.put(key, override_of(limit["max"], limit["per_seconds"], burst, end))
        except InvalidRequest as error:
            return await self._page(visit, form, fault_in(error, form, {"rate": "limit"}))
        undo = "/rates/reset?" + urlencode({"key": key}), "Go back to what jobs say"
        return Went("/rates", f"{key} allows {form['limit']} from the next claim on.", undo)

    @Page("POST", "/rates/reset", "rate-reset", scope=Scope.JOBS_WRITE)
    async def reset(self, visit: Visit) -> Answer:
        key = visit.text("key")
        if not is_key(key):
            raise InvalidRequest(f"key: give 1 to {KEY_LENGTH_MAX} characters", field="key")
        await self._operations.rates.reset(key)
        return Went("/rates", f"For {key} holds again what jobs and runs say.")


def _row(view: RateView) -> dict[str, Any]:
    allows = ""
    if view.max is not None and view.per_seconds is not None:
        allows = f"{view.max:,} in {duration(to_micros(view.per_seconds))}"
    return {
        "view": view,
        "allows": allows,
        "opens": None if view.opens_at is None else to_instant(view.opens_at),
        "until": None if view.until is None else to_instant(view.until),
    }
