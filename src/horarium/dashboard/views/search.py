"""One search for everything that has a page, with what can be done to it; and the views that are kept by name.

The palette, which a key opens on every page, shows the list of this page: it is one search, with and without a script.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.reading import is_name
from horarium.dashboard.attention import Watching
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.jobs import Jobs, read_search
from horarium.errors import Forbidden, NotFound
from horarium.model import Job
from horarium.model.identity import is_run_id
from horarium.operations.facade import Operations
from horarium.operations.looking.saved import SavedViews
from horarium.triggers.words import counted

JOBS_SHOWN = 8
QUEUES_SHOWN = 5
TEXT_CHARS_MAX = 200
VERBS = {
    "run": ("Run {} now", "/bulk-jobs?action=trigger&{}", Scope.RUNS_WRITE, "chosen"),
    "pause": ("Pause {}", "/bulk-jobs?action=pause&{}", Scope.RUNS_WRITE, "chosen"),
    "resume": ("Resume {}", "/bulk-jobs?action=resume&{}", Scope.RUNS_WRITE, "chosen"),
    "retry": ("Retry the failed runs of {}", "/bulk-runs?action=retry&state=failed&{}", Scope.RUNS_WRITE, "job"),
    "hold": ("Hold {}", "/holds?scope=job&{}", Scope.RUNS_WRITE, "what"),
    "edit": ("Edit {}", "/jobs/{}/edit", Scope.JOBS_WRITE, ""),
    "runs": ("Runs of {}", "/runs?{}", Scope.RUNS_READ, "job"),
    "why": ("Why {} ran, or did not", "/jobs/{}#why", Scope.JOBS_READ, ""),
}
"""What a first word offers for the jobs of the others: in words, where, to whom, and the field that names the job."""
ACTIONS = (
    ("New job", "/new-job", Scope.JOBS_WRITE),
    ("Retry failed runs", "/bulk-runs?action=retry&state=failed", Scope.RUNS_WRITE),
    ("Pause jobs that fail", "/bulk-jobs?action=pause&show=failing", Scope.RUNS_WRITE),
    ("Hold everything", "/holds?scope=all", Scope.RUNS_WRITE),
    ("Make a plan", "/plans", Scope.JOBS_READ),
    ("Bring back a deleted job", "/deleted-jobs", Scope.JOBS_READ),
)


class Hit(Struct, frozen=True):
    """A line: what it is, where it leads, and a word beside it."""

    text: str
    to: str
    beside: str = ""


class Search(Pages):
    """The page at `/search`."""

    def __init__(self, operations: Operations, watching: Watching, jobs: Jobs) -> None:
        self._operations, self._watching, self._jobs = operations, watching, jobs
        self._saved = SavedViews(operations.context)

    @Page("GET", "/search", "search", place="search")
    async def show(self, visit: Visit) -> Answer:
        text = visit.text("q").strip()[:TEXT_CHARS_MAX]
        id = text.lower().removeprefix("run ").strip()
        may = is_run_id(id) and visit.may(Scope.RUNS_READ)
        if may and (await self._operations.store.get_runs([id]))[0] is not None:
            return Went(f"/runs/{id}")
        if may and await self._is_batch(id):
            return Went(f"/batches/{id}")
        groups = [group for group in await self._groups(visit, text) if group[1]]
        number = sum(len(hits) for _, hits in groups)
        return Shown("search.html", {"search": text, "found": groups, "number": counted(number, "result")})

    async def _is_batch(self, id: str) -> bool:
        try:
            await self._operations.batches.get(id)
        except NotFound:
            return False
        return True

    async def _groups(self, visit: Visit, text: str) -> list[tuple[str, list[Hit]]]:
        verb, _, rest = text.partition(" ")
        rest = rest.strip().removesuffix(" now").rstrip("*").strip()
        offer = VERBS.get(verb.lower()) if rest else None
        jobs = await self._named(visit, rest if offer else text)
        views = [
            Hit(view.name, view.to, view.to.partition("?")[0][1:]) for view in await self._saved.of(visit.principal)
        ]
        verbs = [Hit(word, to) for word, to, scope in ACTIONS if visit.may(scope)]
        if offer is not None and visit.may(offer[2]):
            verbs = [_offer(offer, job) for job in jobs]
            if len(jobs) > 1 and offer[3] == "chosen":
                verbs.insert(0, Hit(offer[0].format(f"all jobs with {rest}"), offer[1].format(urlencode({"q": rest}))))
            return [("Actions", verbs)]
        pages = [Hit(word, f"/{to}", "page") for _, word, to in visit.places]
        if not text:
            return [("Saved views", views), ("Actions", verbs), ("Pages", pages)]
        return [
            ("Pages", _holding(pages, text)),
            ("Saved views", _holding(views, text)),
            ("Jobs", [_job_hit(job) for job in jobs]),
            ("Queues", await self._queues(visit, text)),
            ("Actions", [*_holding(verbs, text), *(_offer(VERBS[each], jobs[0]) for each in ("run", "pause", "why")
                                                   if len(jobs) == 1 and visit.may(VERBS[each][2]))]),
            ("Elsewhere", _elsewhere(visit, text)),
        ]  # fmt: skip

    async def _named(self, visit: Visit, text: str) -> list[Job]:
        """Jobs with this in their name, title or labels."""
        if not text:
            return []
        found = (await self._jobs.found(visit, text, "", await self._watching.look())).jobs
        return found[:JOBS_SHOWN]

    async def _queues(self, visit: Visit, text: str) -> list[Hit]:
        if not visit.may(Scope.RUNS_READ):
            return []
        stats = (await self._watching.look()).stats
        named = [queue.queue for queue in stats.queues if text.casefold() in queue.queue.casefold()]
        return [Hit(name, "/queue?" + urlencode({"name": name}), "queue") for name in named[:QUEUES_SHOWN]]

    @Page("POST", "/views", "view-save")
    async def save(self, visit: Visit) -> Answer:
        name, to = visit.text("name").strip(), visit.text("to")
        await self._saved.save(visit.principal, name, to, shared=_shared(visit))
        return Went(to, f"The view {name} is kept.")

    @Page("POST", "/views/remove", "view-remove")
    async def remove(self, visit: Visit) -> Answer:
        view = await self._saved.remove(visit.principal, visit.text("name"), shared=_shared(visit))
        return Went(view.to, f"The view {view.name} is kept no longer.")


def _shared(visit: Visit) -> bool:
    """Whether the form is about a view of the team. Raises Forbidden."""
    if visit.text("shared") and not visit.may_share:
        raise Forbidden("a view of the team takes the scope jobs:write, bound to no label or queue", [])
    return bool(visit.text("shared"))


def _offer(offer: tuple[str, str, Scope, str], job: Job) -> Hit:
    words, to, _, field = offer
    return Hit(words.format(job.name), to.format(urlencode({field: job.name}) if field else job.name))


def _job_hit(job: Job) -> Hit:
    return Hit(job.name, f"/jobs/{job.name}", job.title or ("" if job.enabled else "paused"))


def _holding(hits: Iterable[Hit], text: str) -> list[Hit]:
    return [hit for hit in hits if text.casefold() in hit.text.casefold()]


def _elsewhere(visit: Visit, text: str) -> list[Hit]:
    """Lists with this as their filter."""
    if read_search(text)[0] or not visit.may(Scope.RUNS_READ):
        return []
    hits = [Hit(f"Failures with \u201c{text}\u201d", "/failures?" + urlencode({"q": text, "span": "week"})),
            Hit(f"Runs with \u201c{text}\u201d in their error", "/runs?" + urlencode({"error": text})),
            Hit(f"Batches with \u201c{text}\u201d", "/batches?" + urlencode({"q": text}))]  # fmt: skip
    if is_name(text) and visit.may(Scope.ADMIN):
        hits.append(Hit(f"Changes by {text}", "/audit?" + urlencode({"actor": text})))
    return hits
