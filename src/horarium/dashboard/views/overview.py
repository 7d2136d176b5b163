"""Overview: is all well, and if not, faults first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, MINUTE, Instant, to_micros, to_text
from horarium.dashboard.activity import Activity, over_all
from horarium.dashboard.attention import Attention, Watching
from horarium.dashboard.charts import bar_chart, late_chart
from horarium.dashboard.formats import brief, clock_change, duration, in_words
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit
from horarium.dashboard.strips import Small, ahead_of, small
from horarium.dashboard.troubles import Trouble
from horarium.dashboard.views.acknowledge import may_note
from horarium.model import Job
from horarium.model.holds import HeldMissed, Hold
from horarium.operations.facade import Operations
from horarium.policies import CatchUpPolicy
from horarium.rules.compiled import trigger_of
from horarium.rules.holds import FOREVER, Stretch, hold_at
from horarium.rules.serving import policy_of
from horarium.triggers.words import counted

NEXT_SHOWN = 12
NEXT_READ = 40


class Overview(Pages):
    """The page at `/`."""

    def __init__(self, operations: Operations, watching: Watching, activity: Activity) -> None:
        self._operations = operations
        self._watching = watching
        self._activity = activity

    @Page("GET", "/", "overview", also=Scope.RUNS_READ, place="overview")
    async def show(self, visit: Visit) -> Answer:
        attention = await self._watching.look()
        day = visit.one_of("span", ["day"]) == "day"
        whole = max((one.stretch for one in attention.held if one.hold.scope.all), key=_ends_at, default=None)
        return Shown(
            "overview.html",
            {
                "heading": _verdict(attention),
                "summary": _summary(attention),
                "troubles": await self._with_strips(attention, visit),
                "known": attention.known,
                "may_note": lambda trouble: visit.may(Scope.RUNS_WRITE) and may_note(visit, trouble),
                "known_count": attention.count_known,
                "day": day,
                "coming": await self._coming(visit),
                "held_since": None if whole is None else whole.begins_at,
                "catching_up": whole.ends_at if whole is not None and whole.ends_at < visit.now + 7 * DAY else None,
                "clocks": clock_change(visit.now, visit.now + 7 * DAY, visit.zone),
                **await self._charts(visit, None if whole is None else whole.begins_at, day=day),
                "waiting": sum(queue.due for queue in attention.stats.queues),
                "running": sum(queue.running for queue in attention.stats.queues),
                "jobs": attention.stats.jobs,
            },
        )

    async def _with_strips(self, attention: Attention, visit: Visit) -> list[tuple[Trouble, Small]]:
        """Each line with the strip of its job, if it is one job's."""
        names = [trouble.subject for trouble in attention.troubles if trouble.kind == "failing"]
        jobs = {job.name: job for job in await self._operations.store.get_jobs(names) if job is not None}
        holds = await self._operations.reconciler.holding.look()
        return [
            (each, small(jobs.get(each.subject) if each.runs else None, each.runs, visit.now, holds))
            for each in attention.troubles
        ]

    async def _charts(self, visit: Visit, held_since: Instant | None, *, day: bool) -> dict[str, Any]:
        if visit.principal.bound:  # they count the runs of all
            return {"chart": None}
        span, step = (DAY, 15 * MINUTE) if day else (HOUR, MINUTE)
        bars = await self._activity.bars(visit.now, span, step, self._operations.clock.monotonic())
        ok, failed, missed = over_all(bars)
        half, most = self._activity.lateness(visit.now, span)
        return {
            "chart": bar_chart(bars, step, visit.zone, held_since),
            "late": late_chart(bars, step, visit.zone),
            "late_half": duration(half),
            "late_most": duration(most),
            "ok": ok,
            "failed": failed,
            "missed": missed,
        }

    async def _coming(self, visit: Visit) -> list[dict[str, Any]]:
        """Each job once, with its next fire time. What fires every few seconds is planned a little ahead, so that the
        store's order is not quite that of the next fire times."""
        jobs, _ = await self._operations.store.due_jobs(visit.now + 7 * DAY, NEXT_READ)
        nexts = [(fires[0], job) for job in jobs if (fires := ahead_of(job, visit.now, 1))]
        nexts.sort(key=lambda pair: (pair[0], pair[1].name))
        holds = [] if visit.principal.bound else self._operations.reconciler.holding.known
        return [
            {"job": job.name, "at": fire, "words": brief(trigger_of(job).words()), "fate": _fate(holds, job, fire)}
            for fire, job in nexts[:NEXT_SHOWN]
        ]


def _ends_at(stretch: Stretch) -> Instant:
    return stretch.ends_at


def _fate(holds: Sequence[Hold], job: Job, fire: Instant) -> str | None:
    """What a hold makes of a fire time; None: nothing lies over it."""
    found = hold_at(holds, job, fire)
    if found is None:
        return None
    if found.hold.missed is HeldMissed.SKIP:
        return "held, skipped"
    end, window = found.stretch.ends_at, job.catch_up.window_seconds
    over = policy_of(job) is CatchUpPolicy.NONE or (window is not None and end - fire > to_micros(window))
    if over and fire > job.planned_until:
        return "too late by then"
    return "held" if end >= FOREVER else f"held, {to_text(end)}"


def _verdict(attention: Attention) -> str:
    count = attention.count
    if not attention.stats.jobs and not count:
        return "No job yet"
    if not count and attention.held and not attention.known:
        return "Nothing else needs attention"
    if not count and attention.partial:
        return "More runs wait than can be looked at"
    if not count:
        return "Nothing new needs attention" if attention.known else "All is well"
    number = f"At least {count:,}" if attention.partial else in_words(count)
    # Where more jobs are ill than there are lines, these are their causes.
    word = "cause" if len(attention.badges) > count else "thing"
    return f"{number} {word} needs attention" if count == 1 else f"{number} {word}s need attention"


def _summary(attention: Attention) -> str:
    stats, paused = attention.stats, attention.paused
    if not stats.jobs:
        return "There is nothing to run."
    ill = attention.badges
    if attention.partial and ill:
        parts = [f"At least {len(ill):,} of {counted(stats.jobs, 'job')} are not well"]
    elif attention.partial:
        waiting = sum(queue.due for queue in stats.queues)
        parts = [f"{counted(waiting, 'run')} wait; whether jobs are late is not known"]
    else:
        resting = len({job.name for job in paused.items} - ill.keys())
        # Of more paused jobs than are listed, those that are enabled and not ill are known to be well.
        well = stats.jobs - len(ill) - resting if paused.next_after is None else stats.jobs_enabled - len(ill)
        well = max(well, 0)
        parts = [f"{well:,} of {counted(stats.jobs, 'job')} {'is' if well == 1 else 'are'} well"]
        sick = [
            f"{counted(len(jobs), 'job')} {one if len(jobs) == 1 else many}"
            for jobs, one, many in ((attention.failing, "fails", "fail"), (attention.late, "is late", "are late"))
            if jobs
        ]
        if sick:
            parts[0] = f"{', '.join(sick)}. {parts[0]}"
    if paused.items:
        parts.append(f"{attention.paused_words} {'is' if attention.paused_words == '1' else 'are'} paused on purpose")
    return ", ".join(parts) + "."
