"""Many jobs paused, resumed or run at once: those that were chosen, or all that a filter matches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.roles import Scope
from horarium.api.reading import is_name
from horarium.clock import Instant
from horarium.dashboard.attention import Watching
from horarium.dashboard.formats import address
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.bulk import CHOSEN_MAX, action_of
from horarium.dashboard.views.jobs import LOOKED_MAX, NOT_BY_NAME, SHOWS, filter_of, fits, names_of, read_search
from horarium.errors import Conflict, Forbidden, InvalidRequest, NotFound
from horarium.model import Job
from horarium.operations.facade import Operations
from horarium.ports import PAGE_MAX, JobFilter
from horarium.triggers.words import counted

MATCHED_MAX = 1_000
"""Jobs of one request; where there are more, the page goes on from there."""
TOGETHER = 8
NAMED = 12
REASON_CHARS_MAX = 500
VERBS = {"pause": "Pause", "resume": "Resume", "trigger": "Run"}
DONE = {"pause": "paused", "resume": "resumed", "trigger": "triggered"}
LEFT = {"pause": "paused already, or finished", "resume": "not paused", "trigger": ""}
CONSEQUENCES = {
    "pause": "No later fire time of them runs until they are resumed. What runs now goes on.",
    "resume": "They go on with their next fire times; those that passed meanwhile are not caught up.",
    "trigger": "Each gets a run now, paused ones too. A job's overlap policy holds. This can't be taken back; runs can "
    "be cancelled.",
}


class Matched(Struct, frozen=True):
    """Jobs that are meant. `left`: how many match that this can't be done to; `after`: the last name that was looked
    at, where there are more."""

    jobs: list[Job]
    left: int = 0
    after: str | None = None


class BulkJobs(Pages):
    """The pages at `/bulk-jobs`, and what is posted to `/jobs`."""

    def __init__(self, operations: Operations, watching: Watching) -> None:
        self._operations = operations
        self._watching = watching

    @Page("GET", "/bulk-jobs", "bulk-jobs", scope=Scope.RUNS_WRITE, also=Scope.JOBS_READ, place="jobs")
    @Page("POST", "/bulk-jobs/chosen", "bulk-jobs-chosen", scope=Scope.RUNS_WRITE, place="jobs", reads=True)
    async def ask(self, visit: Visit) -> Answer:
        """How many there are, which, and the consequences."""
        action = action_of(visit, DONE)
        given = visit.texts("chosen")[:CHOSEN_MAX]
        chosen = given if given or visit.form else None
        matched = await self._matched(visit, action, chosen)
        values: dict[str, Any] = {
            "action": action,
            "verb": VERBS[action],
            "matched": matched,
            "names": [job.name for job in matched.jobs[:NAMED]],
            "left": LEFT[action],
            "consequences": CONSEQUENCES[action],
            "chosen": chosen,
            "search": visit.text("q"),
            "only": visit.text("show"),
            "begun": visit.text("after"),
            "back": _back(visit),
        }
        return Shown("bulk-jobs.html", values)

    async def _matched(self, visit: Visit, action: str, chosen: Sequence[str] | None) -> Matched:
        """Those that were chosen, or all that the filter of the address or the form matches, by name."""
        search, only = visit.text("q").strip(), visit.one_of("show", SHOWS)
        after = visit.text("after") or None
        if chosen is not None or only in NOT_BY_NAME:
            names = sorted(set(await names_of(self._operations, only, await self._watching.look()) if chosen is None
                               else chosen))  # fmt: skip
            names = [name for name in names if is_name(name) and (after is None or name > after)][:MATCHED_MAX]
            parts = [names[at : at + PAGE_MAX] for at in range(0, len(names), PAGE_MAX)]
            found = [job for part in parts for job in await self._operations.store.get_jobs(part) if job is not None]
            return _can_be(action, [job for job in found if chosen is not None or fits(search, job)], None)
        where, part = replace(filter_of(search, only), name_prefix=None), read_search(search)[1]
        found, looked, most = list[Job](), 0, LOOKED_MAX if part else MATCHED_MAX
        while looked < most:
            page = await self._operations.store.list_jobs(where, after, min(PAGE_MAX, most - looked))
            found += (job for job in page.items if fits(part, job))
            looked, after = looked + len(page.items), page.next_after
            if after is None:
                break
        return _can_be(action, found, after)

    @Page("POST", "/jobs", "jobs-bulk", scope=Scope.RUNS_WRITE, place="jobs")
    async def do(self, visit: Visit) -> Answer:
        action, reason = action_of(visit, DONE), visit.text("reason").strip()[:REASON_CHARS_MAX]
        chosen = None if visit.text("all") else visit.texts("chosen")[:CHOSEN_MAX]
        matched = await self._matched(visit, action, chosen)
        why, names = reason or f"by {visit.principal.name}", [job.name for job in matched.jobs]
        begun = self._operations.clock.now()
        done = await self._done(action, names, why)
        gone = len(names) - done + (len(set(chosen)) - len(names) - matched.left if chosen is not None else 0)
        said = f"{counted(done, 'job')} {DONE[action]}."
        if matched.left:
            said += f" {counted(matched.left, 'job')} {'was' if matched.left == 1 else 'were'} {LEFT[action]}."
        if gone:
            said += f" {counted(gone, 'job')} could not be: gone, or changing too fast."
        if matched.after is not None:
            again = address(
                "/bulk-jobs", action=action, q=visit.text("q"), show=visit.text("show"), after=matched.after
            )
            return Went(again, f"{said} There are more.")
        undo = None
        if action == "pause" and done:
            span = {"from": begun, "to": self._operations.clock.now(), "why": digest_of_reason(why)}
            undo = "/bulk-jobs/undo?" + urlencode(span), "Resume" if done == 1 else f"Resume {done:,}"
        return Went(_back(visit), said, undo)

    async def _done(self, action: str, names: Sequence[str], reason: str) -> int:
        """To how many of these it was done."""
        jobs, done = self._operations.jobs, 0

        async def one(name: str) -> bool:
            try:
                if action == "pause":
                    await jobs.pause_job(name, reason)
                elif action == "resume":
                    await jobs.resume_job(name)
                else:
                    await jobs.trigger_job(name)
            except (NotFound, Conflict, Forbidden):
                return False
            return True

        for at in range(0, len(names), TOGETHER):
            done += sum(await asyncio.gather(*map(one, names[at : at + TOGETHER])))
        return done

    @Page("POST", "/bulk-jobs/undo", "bulk-jobs-undo", scope=Scope.RUNS_WRITE)
    async def undo(self, visit: Visit) -> Answer:
        """Resume those that one request paused: in these instants, with this reason."""
        begun, ended, why = _instant(visit, "from"), _instant(visit, "to"), visit.text("why")
        names, after = list[str](), None
        while True:
            page = await self._operations.store.list_jobs(JobFilter(enabled=False, finished=False), after, PAGE_MAX)
            for job in page.items:
                at = job.paused_at
                if at is not None and begun <= at <= ended and digest_of_reason(job.pause_reason or "") == why:
                    names.append(job.name)
            if (after := page.next_after) is None:
                break
        return Went("/jobs", f"{counted(await self._done('resume', names, ''), 'job')} resumed.")


def _can_be(action: str, found: list[Job], after: str | None) -> Matched:
    if action == "trigger":
        return Matched(found, after=after)
    can = [job for job in found if job.finished_at is None and job.enabled is (action == "pause")]
    return Matched(can, len(found) - len(can), after)


def _back(visit: Visit) -> str:
    back = visit.text("back")
    if back.startswith("/jobs"):
        return back
    return address("/jobs", q=visit.text("q"), show=visit.text("show"))


def digest_of_reason(reason: str) -> str:
    """Tells a reason in an address."""
    return sha256(reason.encode("utf-8", "replace")).hexdigest()[:12]


def _instant(visit: Visit, field: str) -> Instant:
    given = visit.text(field)
    if not given.isdigit() or len(given) > 18:
        raise InvalidRequest(f"{field}: {given[:50]!r} is no instant", field=field)
    return int(given)
