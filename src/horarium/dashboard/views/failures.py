"""Failed runs grouped by their error: the few causes behind many failures, since when, and all of one retried."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, Instant
from horarium.dashboard.attention import Watching, last_runs, some_runs
from horarium.dashboard.differences import Difference, changes
from horarium.dashboard.formats import address, in_words
from horarium.dashboard.marks import mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import NotFound
from horarium.model import Job, Run, State, retry_key
from horarium.operations.facade import Operations
from horarium.operations.jobs.versions import Version
from horarium.operations.runs.bulk import Selection
from horarium.ports import BATCH_MAX, RunFilter
from horarium.rules.error_lines import error_line, error_sort
from horarium.triggers.words import counted

SPANS = {"day": (DAY, "24 h", "24 hours", HOUR), "week": (7 * DAY, "7 d", "7 days", 7 * HOUR),
         "month": (30 * DAY, "30 d", "30 days", 30 * HOUR)}  # fmt: skip
READ_MAX = 2_000
"""Failed runs that are read, the newest first; the counts of more are said to be lower bounds."""
FAILED_ONLY = frozenset({State.FAILED})
GROUPS_SHOWN = 50
LOOKED_INTO = 12
"""Errors, the first ones, for which it is looked up how they began and whether they were retried."""
FILTERS = {"open": "Open", "new": "New", "one": "One job", "retried": "Retried since", "known": "Acknowledged"}
RUNS_SHOWN = 10
BACK = 100
"""The last runs of a job among which the last well one is looked for."""
VERSIONS_READ = 20
BEFORE_READ = 10
"""Runs before the first failure that are looked at."""
BARS, PITCH, HEIGHT = 24, 6.0, 18.0


class Origin(Struct, frozen=True):
    """`seen`: of how many runs before it failed with the same error, of how many looked at. `version`: the one that it
    began with, `older`: the one before that. `newer`: there is a later one by now."""

    seen: int = 0
    looked: int = 0
    version: Version | None = None
    older: Version | None = None
    newer: bool = False
    known: bool = False

    @property
    def words(self) -> str:
        """The origin in words, without the version, which a page writes itself."""
        if self.seen:
            return f"seen before: in {self.seen} of the {counted(self.looked, 'run')} before"
        if not self.known or self.version is not None:
            return ""
        return "no version changed then" if self.looked else "began with the first run that is kept"

    @property
    def differences(self) -> Sequence[Difference]:
        """What that version changed."""
        if self.version is None or self.older is None:
            return ()
        return changes([self.version, self.older])[0].differences


class Group(Struct):
    """The failed runs of one error, the newest first. `known`: it was acknowledged; `retried`: its newest run was
    retried."""

    key: str
    line: str
    runs: list[Run]
    failing: bool = False
    known: bool = False
    retried: bool = False
    origin: Origin = Origin()

    def fits(self, show: str) -> bool:
        """Whether it is among those of a filter."""
        if show == "known" or self.known:
            return self.known and show == "known"
        match show:
            case "new":
                return self.origin.known and not self.origin.seen
            case "one":
                return len(self.jobs) == 1
            case "retried":
                return self.retried
        return True

    @property
    def jobs(self) -> list[str]:
        """The jobs that it touches, those with the most runs first."""
        return [job for job, _ in Counter(run.job or f"one-off, {run.queue}" for run in self.runs).most_common()]

    @property
    def jobs_words(self) -> str:
        """Its jobs, the first two by name."""
        names = self.jobs
        more = len(names) - 2
        return ", ".join(names[:2]) + (f" and {counted(more, 'other job')}" if more > 0 else "")

    def bars(self, since: Instant, step: Instant) -> list[tuple[float, float, float]]:
        """Where its bars lie: x, y and height."""
        counts = Counter(min((run.fire_at - since) // step, BARS - 1) for run in self.runs)
        most = max(counts.values())
        return [
            (place * PITCH, round(20 - HEIGHT * count / most, 1), round(HEIGHT * count / most, 1))
            for place, count in sorted(counts.items())
            if place >= 0
        ]


def key_of(run: Run) -> str:
    """Tells errors of one kind: the line that says it, without numbers and ids."""
    return error_sort(run.error)


class Failures(Pages):
    """The page at `/failures`."""

    def __init__(self, operations: Operations, watching: Watching) -> None:
        self._operations = operations
        self._watching = watching

    @Page("GET", "/failures", "failures", scope=Scope.RUNS_READ, also=Scope.JOBS_READ, place="failures")
    async def show(self, visit: Visit) -> Answer:
        name = _span(visit)
        length, _, words, step = SPANS[name]
        runs, cut = await self._failed(visit.now - length, visit.now)
        search = visit.text("q").strip()
        show = visit.one_of("show", FILTERS) or "open"
        every = await self._groups(runs, search)
        groups = [group for group in every if group.fits(show)]
        opened = next((group for group in groups if group.key == visit.text("open")), None)
        if opened is None and len(groups) == 1:
            opened = groups[0]
        number = sum(len(group.runs) for group in groups)
        least = "At least " if cut else ""
        heading = (
            f"{in_words(len(groups))} {'error' if len(groups) == 1 else 'errors'}, {counted(number, 'failed run')}"
        )
        here = address("/failures", span=name, q=search, show=show if show != "open" else "")
        since = visit.now - length
        return Shown(
            "failures.html",
            {
                "heading": f"{least}{heading[0].lower() if cut else heading[0]}{heading[1:]}"
                if groups
                else "Nothing failed",
                "words": words,
                "cut_at": runs[-1].fire_at if cut else None,
                "show": show,
                "chips": [
                    (
                        key,
                        word,
                        sum(group.fits(key) for group in every),
                        more_of(key, every),
                        address("/failures", span=name, q=search, show=key),
                    )
                    for key, word in FILTERS.items()
                ],
                "noted": sum(group.known for group in every),
                "errors": [(group, group.bars(since, step)) for group in groups[:GROUPS_SHOWN]],
                "more": max(len(groups) - GROUPS_SHOWN, 0),
                "opened": opened,
                "detail": {} if opened is None else await self._detail(opened, visit),
                "search": search,
                "span": name,
                "step_words": "hour" if name == "day" else f"{step // HOUR} hours",
                "spans": [(each, SPANS[each][1], address("/failures", span=each, q=search)) for each in SPANS],
                "link": lambda group: f"{here}&{urlencode({'open': group.key})}#{group.key}",
            },
        )

    async def _failed(self, since: Instant, now: Instant) -> tuple[list[Run], bool]:
        """Failed runs since then, the newest first; and whether there are more than are read."""
        where = RunFilter(states=FAILED_ONLY, since=max(since, 0), until=now + 1)
        return await some_runs(self._operations, where, READ_MAX)

    async def _groups(self, runs: list[Run], search: str) -> list[Group]:
        """Those that fail now first, then by count."""
        attention = await self._watching.look()
        failing = attention.failing
        noted = {(cause.key, cause.sort) for trouble, _ in attention.known for cause in trouble.causes}
        groups: dict[str, Group] = {}
        newest: dict[str | None, str] = {}
        keys: dict[str | None, str] = {}
        for run in runs:
            if (key := keys.get(run.error)) is None:
                key = keys[run.error] = key_of(run)
            newest.setdefault(run.job, key)
            if (group := groups.get(key)) is None:
                group = groups[key] = Group(key, error_line(run.error, 500) or "No error was given", [])
            group.runs.append(run)
        wanted = [group for group in groups.values() if _fits(group, search.casefold())]
        for group in wanted:
            group.failing = any(job in failing and newest[job] == group.key for job in group.jobs)
            group.known = all((f"failing/{job}", group.key) in noted for job in group.jobs)
        ordered = sorted(wanted, key=lambda group: (group.known, not group.failing, -len(group.runs), group.line))
        await self._look_into(ordered[:LOOKED_INTO])
        return ordered

    async def _look_into(self, groups: list[Group]) -> None:
        """How they began, as far as it is one job's, and whether the newest run was retried."""
        names = list({name for group in groups if (name := group.runs[-1].job) is not None})
        jobs = {job.name: job for job in await self._operations.store.get_jobs(names) if job is not None}

        async def look_into(group: Group) -> None:
            first, again = group.runs[-1], await self._again(group.runs[0])
            group.retried = again is not None
            if (job := jobs.get(first.job or "")) is not None and first.job_id == job.id:
                found = await origin_of(self._operations, job, first)
                group.origin = found if len(group.jobs) == 1 else Origin(found.seen, found.looked)

        await asyncio.gather(*(look_into(group) for group in groups))

    async def _again(self, run: Run) -> Run | None:
        return await self._operations.store.get_run_by_key(retry_key(run.id))

    async def _detail(self, group: Group, visit: Visit) -> dict[str, Any]:
        """What is known of the first failure, and of the job before it, where it is one job's."""
        newest, first, jobs = group.runs[0], group.runs[-1], group.jobs
        shown = group.runs[:RUNS_SHOWN]
        again = await asyncio.gather(*(self._again(run) for run in shown))
        found: dict[str, Any] = {"error": newest.error or "", "well": None}
        found["runs"] = [(run, then, then and mark_of(then, visit.now)) for run, then in zip(shown, again, strict=True)]
        if len(jobs) == 1 and first.job is not None:
            runs = await last_runs(self._operations, first.job, BACK)
            found["well"] = next((run for run in runs if run.state is State.COMPLETED), None)
        return found

    @Page("POST", "/failures", "failures-retry", scope=Scope.RUNS_WRITE)
    async def retry(self, visit: Visit) -> Answer:
        """All failed runs of one error."""
        name, key = _span(visit), visit.text("group")
        runs, _ = await self._failed(visit.now - SPANS[name][0], visit.now)
        ids = [run.id for run in runs if key_of(run) == key]
        if not ids:
            raise NotFound("no run of that error is left in this span")
        done, before = 0, 0
        for start in range(0, len(ids), BATCH_MAX):
            selection = Selection(ids=tuple(ids[start : start + BATCH_MAX]))
            batch = await self._operations.bulk.retry(selection, FAILED_ONLY, None, None, visit.now)
            done += batch.done
            before += sum(batch.left.values())
        said = f"{counted(done, 'run')} will run again."
        if before:
            said += f" {counted(before, 'run')} {'was' if before == 1 else 'were'} left: retried before, or not to be."
        return Went(f"/failures?span={name}", said)


def more_of(show: str, every: list[Group]) -> str:
    """That there may be more of a kind, which is looked up of the first errors alone."""
    return "+" if show in ("new", "retried") and len(every) > LOOKED_INTO else ""


def _span(visit: Visit) -> str:
    return visit.one_of("span", SPANS) or "day"


def _fits(group: Group, search: str) -> bool:
    """Whether an error, or the job or id of one of its runs, has this text."""
    if not search or search in group.line.casefold():
        return True
    return any(search in (run.job or "").casefold() or search == run.id for run in group.runs)


async def origin_of(operations: Operations, job: Job, first: Run) -> Origin:
    """How the error of this run began, the first one of the job that failed with it within a span."""
    before = (await operations.store.list_runs(RunFilter(job=job.name, until=first.fire_at), None, BEFORE_READ)).items
    sort = error_sort(first.error)
    seen = sum(run.state is State.FAILED and error_sort(run.error) == sort for run in before)
    versions = (await operations.versions.shown(job, None, VERSIONS_READ)).items
    place = next((place for place, each in enumerate(versions) if each.at <= first.fire_at), None)
    if place is None or place + 1 >= len(versions):
        return Origin(seen, len(before), known=True)
    version, older = versions[place : place + 2]
    worked = any(run.state is State.COMPLETED and run.fire_at >= version.at for run in before)
    if seen or worked or not before:
        return Origin(seen, len(before), known=True)
    return Origin(0, len(before), version, older, newer=place > 0, known=True)
