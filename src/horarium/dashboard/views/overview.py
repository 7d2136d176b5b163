"""Overview: is all well, and if not, what is wrong first."""

from __future__ import annotations

from typing import Any

from horarium.clock import DAY, HOUR, MINUTE
from horarium.dashboard.activity import Activity, over_all
from horarium.dashboard.attention import Attention, Watching
from horarium.dashboard.charts import bar_chart, late_lines
from horarium.dashboard.formats import brief, counted, duration, in_words
from horarium.dashboard.site import Answer, Page, Shown, Visit
from horarium.dashboard.strips import small
from horarium.operations.facade import Operations
from horarium.operations.upcoming import upcoming
from horarium.rules.planning import trigger_of

NEXT_SHOWN = 10
NEXT_READ = 200


class Overview:
    """The page at `/`."""

    def __init__(self, operations: Operations, watching: Watching, activity: Activity) -> None:
        self._operations = operations
        self._watching = watching
        self._activity = activity

    def pages(self) -> list[Page]:
        """The table."""
        return [Page(path="/", name="overview", handle=self.show, place="overview")]

    async def show(self, visit: Visit) -> Answer:
        attention = await self._watching.look()
        day = visit.text("span") == "day"
        return Shown(
            "overview.html",
            {
                "heading": _verdict(attention),
                "summary": _summary(attention),
                "troubles": [(trouble, small(None, trouble.runs, visit.now)) for trouble in attention.troubles],
                "day": day,
                "coming": await self._coming(visit),
                **await self._charts(visit, day=day),
                "waiting": sum(queue.due for queue in attention.stats.queues),
                "running": sum(queue.running for queue in attention.stats.queues),
                "jobs": attention.stats.jobs,
            },
        )

    async def _charts(self, visit: Visit, *, day: bool) -> dict[str, Any]:
        span, step = (DAY, 15 * MINUTE) if day else (HOUR, MINUTE)
        bars = await self._activity.bars(visit.now, span, step, self._operations.clock.monotonic())
        ok, failed, missed = over_all(bars)
        half = max((bar.late_half for bar in bars if bar.late_half is not None), default=None)
        most = max((bar.late_most for bar in bars if bar.late_most is not None), default=None)
        return {
            "chart": bar_chart(bars, step, visit.zone),
            "late_half_points": late_lines(bars)[0],
            "late_most_points": late_lines(bars)[1],
            "late_half": duration(half),
            "late_most": duration(most),
            "ok": ok,
            "failed": failed,
            "missed": missed,
        }

    async def _coming(self, visit: Visit) -> list[dict[str, Any]]:
        """Each job once, with its next fire time."""
        found = await upcoming(self._operations.store, visit.now, visit.now + 7 * DAY, NEXT_READ)
        first = {one.job: one.fire_at for one in reversed(found.items)}
        names = sorted(first, key=lambda name: (first[name], name))[:NEXT_SHOWN]
        jobs = await self._operations.store.get_jobs(names)
        words = {job.name: trigger_of(job).words() for job in jobs if job is not None}
        return [{"job": name, "at": first[name], "words": brief(words.get(name, ""))} for name in names]


def _verdict(attention: Attention) -> str:
    count = len(attention.troubles)
    if not count:
        return "All is well"
    return f"{in_words(count)} {'thing needs' if count == 1 else 'things need'} attention"


def _summary(attention: Attention) -> str:
    stats = attention.stats
    if not stats.jobs:
        return "There is no job yet."
    ill = len(attention.by_job)
    paused = stats.jobs - stats.jobs_enabled
    parts = [f"{max(stats.jobs - ill - paused, 0):,} of {counted(stats.jobs, 'job')} are well"]
    if paused:
        parts.append(f"{paused:,} {'is' if paused == 1 else 'are'} paused on purpose")
    return ", ".join(parts) + "."
