"""Jobs: the list, with troubles first, and actions on several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.roles import Scope
from horarium.api.reading import is_place, write_cursor
from horarium.clock import INSTANT_MAX
from horarium.dashboard.attention import Attention, Watching, last_runs_of
from horarium.dashboard.formats import address
from horarium.dashboard.marks import FAILED, LATE, PAUSED, RUNNING, Mark
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.strips import small
from horarium.dashboard.troubles import LAST_RUNS
from horarium.model import CLAIMED, Job, Run
from horarium.model.holds import Hold
from horarium.model.identity import is_run_id
from horarium.operations.facade import Operations
from horarium.operations.looking.saved import SavedViews
from horarium.ports import PAGE_MAX, JobFilter, RunFilter
from horarium.rules.compiled import words_of
from horarium.triggers.words import counted

SHOWN = 50
SORTED_MAX = 950
LOOKED_MAX = 4_000
"""How many jobs are looked at for a part of a name that is not its beginning."""
SORTS = ("name", "next")
SHOWS = ("failing", "late", "running", "paused")
NOT_BY_NAME = SHOWS[:3]
"""Of these the names are known by a look at the causes, not by a walk over all jobs."""


class Found(Struct, frozen=True):
    """A page of jobs. `more`: where the next one begins; `within`: that one looks for the search anywhere in a name;
    `looked`: how many were looked at for that, where there are more."""

    jobs: list[Job]
    more: str | None = None
    within: bool = False
    looked: int = 0


class Jobs(Pages):
    """The page at `/jobs`."""

    def __init__(self, operations: Operations, watching: Watching) -> None:
        self._operations = operations
        self._watching = watching
        self._saved = SavedViews(operations.context)

    @Page("GET", "/jobs", "jobs", also=Scope.RUNS_READ, place="jobs")
    async def show(self, visit: Visit) -> Answer:
        search, only = visit.text("q").strip(), visit.one_of("show", SHOWS)
        wanted = search.lower()
        if is_run_id(wanted) and (await self._operations.store.get_runs([wanted]))[0] is not None:
            return Went(f"/runs/{wanted}")
        attention = await self._watching.look()
        found = await self.found(visit, search, only, attention)
        runs = await last_runs_of(self._operations, [job.name for job in found.jobs], LAST_RUNS)
        holds = await self._operations.reconciler.holding.look()
        rows = [_row(job, runs[job.name], attention, holds, visit) for job in found.jobs]
        return Shown(
            "jobs.html",
            {
                "rows": rows,
                "search": search,
                "only": only,
                "chips": await self._chips(attention, search, only),
                "stats": attention.stats,
                "summary": _summary(attention),
                "sort": visit.one_of("sort", SORTS) if not search and not only else "",
                "more": _link(visit, search, only, found) if found.more else None,
                "looked": found.looked,
                "part": read_search(search)[1],
                "saved": await self._saved.of(visit.principal, "/jobs"),
                "view_to": _view_to(visit, search, only),
                "bulk": _bulk_links(search, only) if search or only else [],
            },
        )

    async def found(self, visit: Visit, search: str, only: str, attention: Attention) -> Found:
        """The jobs to show, and where the next page begins."""
        if only in NOT_BY_NAME:
            names = await names_of(self._operations, only, attention)
            jobs = await self._operations.store.get_jobs(names[:PAGE_MAX])
            return Found([job for job in jobs if job is not None and fits(search, job)])
        if visit.text("sort") == "next" and not search and not only:
            return await self._by_next_fire(visit)
        where, prefix = filter_of(search, only), read_search(search)[1]
        after = visit.after("jobs", is_place)
        if visit.text("within"):
            return await self._holding(prefix, where, after, SHOWN)
        page = await self._operations.jobs.list_jobs(where, after, SHOWN)
        if prefix and page.next_after is None:
            others = await self._holding(prefix, where, None, SHOWN - len(page.items))
            return replace(others, jobs=[*page.items, *others.jobs])
        first: list[Job] = []
        if after is None and not search and not only and visit.text("sort") != "name":
            ill = await self._operations.store.get_jobs(list(attention.badges)[:SHOWN])
            first = [job for job in ill if job is not None]
        names_first = {job.name for job in first}
        rest = [job for job in page.items if job.name not in names_first]
        return Found([*first, *rest], write_cursor("jobs", page.next_after))

    async def _holding(self, part: str, where: JobFilter, after: str | None, wanted: int) -> Found:
        """Jobs with this anywhere in their name but at its beginning, capitals or not. No index knows them: a bounded
        number of jobs is looked at, by name, and the next page goes on after the last of them."""
        every, found, looked = replace(where, name_prefix=None), list[Job](), 0
        while looked < LOOKED_MAX and len(found) < wanted:
            page = await self._operations.store.list_jobs(every, after, PAGE_MAX)
            for job in page.items:
                looked, after = looked + 1, job.name
                if _holds(part.casefold(), job) and not job.name.startswith(part):
                    found.append(job)
                    if len(found) == wanted:
                        break
            else:
                if page.next_after is None:
                    return Found(found)
        return Found(found, write_cursor("jobs", after), within=True, looked=looked)

    async def _by_next_fire(self, visit: Visit) -> Found:
        """Those that fire next first. A store has no cursor for that: as far as one may turn the pages."""
        given = visit.text("cursor")
        start = min(int(given), SORTED_MAX) if given.isdigit() and len(given) <= 4 else 0
        jobs, beyond = await self._operations.store.due_jobs(INSTANT_MAX, start + SHOWN)
        more = beyond is not None and start + SHOWN <= SORTED_MAX
        return Found(jobs[start:], str(start + SHOWN) if more else None)

    async def _chips(self, attention: Attention, search: str, only: str) -> list[dict[str, Any]]:
        stats = attention.stats
        running = sum(queue.running for queue in stats.queues)
        chips: list[tuple[str, str, str, Mark | None]] = [
            ("", "All", f"{stats.jobs:,}", None),
            ("failing", "Failing", attention.jobs_words("failing"), FAILED),
            ("late", "Late", attention.jobs_words("late"), LATE),
            ("running", "Running", f"{running:,}", RUNNING),
            ("paused", "Paused", attention.paused_words, PAUSED),
        ]
        return [
            {
                "word": word,
                "count": count,
                "mark": mark,
                "current": only == key,
                "to": address("/jobs", q=search, show=key),
            }
            for key, word, count, mark in chips
        ]


async def names_of(operations: Operations, only: str, attention: Attention) -> list[str]:
    """Names of the jobs that fail, are late, or run now."""
    if only == "running":
        page = await operations.store.list_runs(RunFilter(states=CLAIMED), None, PAGE_MAX)
        return list(dict.fromkeys(run.job for run in page.items if run.job is not None))
    return list(attention.failing if only == "failing" else attention.late)


def filter_of(search: str, only: str) -> JobFilter:
    """The part of a search that an index answers."""
    (labels, prefix), paused = read_search(search), False if only == "paused" else None
    return JobFilter(labels=labels, name_prefix=prefix or None, enabled=paused, finished=paused)


def fits(search: str, job: Job) -> bool:
    """Whether a job has these labels, and this text anywhere."""
    labels, part = read_search(search)
    return labels.items() <= job.labels.items() and _holds(part.casefold(), job)


def _holds(part: str, job: Job) -> bool:
    """Whether the name, the title or a label of a job has this text in it."""
    texts = (job.name, job.title or "", *job.labels, *job.labels.values())
    return any(part in text.casefold() for text in texts)


def _view_to(visit: Visit, search: str, only: str) -> str:
    """The address of the filter and the order; "": nothing is."""
    found = address("/jobs", q=search, show=only, sort=visit.text("sort"))
    return found if "?" in found else ""


def _bulk_links(search: str, only: str) -> list[tuple[str, str]]:
    """The actions on all that match."""
    verbs = {"resume": "Resume"} if only == "paused" else {"pause": "Pause", "trigger": "Run"}
    return [
        (f"{verb} all that match", address("/bulk-jobs", action=key, q=search, show=only))
        for key, verb in verbs.items()
    ]


def _link(visit: Visit, search: str, only: str, found: Found) -> str:
    within = "1" if found.within else ""
    return address("/jobs", q=search, show=only, sort=visit.text("sort"), cursor=found.more, within=within)


def _row(job: Job, runs: tuple[Run, ...], attention: Attention, holds: Sequence[Hold], visit: Visit) -> dict[str, Any]:
    return {
        "job": job,
        "badge": attention.badges.get(job.name),
        "words": words_of(job),
        "strip": small(job, runs, visit.now, holds),
        "took": next((run.took for run in runs if run.took is not None), None),
        "queue": job.queue,
    }


def read_search(search: str) -> tuple[dict[str, str], str]:
    """The typed filter: pairs such as `team=prod`, or `label:team=prod`, are labels, the rest is how a name begins."""
    labels: dict[str, str] = {}
    prefix = ""
    for word in search.split():
        name, sign, value = word.removeprefix("#").removeprefix("label:").partition("=")
        if sign and name:
            labels[name] = value
        else:
            prefix = word
    return labels, prefix


def _summary(attention: Attention) -> str:
    stats = attention.stats
    known = len(attention.badges.keys() & attention.known_jobs)
    ill, paused = len(attention.badges) - known, len(attention.paused.items)
    parts = [f"{counted(stats.jobs, 'job')}."]
    if ill:
        least = "At least " if attention.partial else ""
        parts.append(
            f"{least}{ill:,} {'needs' if ill == 1 else 'need'} attention{',' if paused and not known else '.'}"
        )
    if known:
        parts.append(f"{known:,} more {'was' if known == 1 else 'were'} acknowledged.")
    if paused:
        parts.append(f"{attention.paused_words} {'is' if paused == 1 else 'are'} paused.")
    return " ".join(parts)
