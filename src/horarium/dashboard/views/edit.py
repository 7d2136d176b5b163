"""New job and edit: a form that previews while one types."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.problems import InvalidContent
from horarium.api.reading import to_definition
from horarium.clock import Instant, to_instant
from horarium.dashboard.fields import (
    CATCH_UPS,
    KINDS,
    NEW,
    OPTIONAL,
    OTHER,
    OTHERS,
    OUTCOMES,
    OVERLAPS,
    TARGETS,
    Typed,
    as_command,
    form_of,
    place_of,
    typed,
)
from horarium.dashboard.formats import plainly
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.strips import clock_changes
from horarium.errors import AlreadyExists, CallerError, InvalidTrigger
from horarium.model import Job
from horarium.wire.definitions import JobDefinition, definition_of

FIRES_SHOWN = 5
EMPTY = "expected str of length >= 1"
NEEDED = "This is needed."


class Problems:
    """The faults of a form: by field, a sentence; of the rule, also where in its text."""

    def __init__(self) -> None:
        self.by_field: dict[str, str] = {}
        self.position: int | None = None
        self.rest: list[str] = []

    def add(self, field: str, message: str) -> None:
        """One thing that is wrong; the first of each field is shown."""
        if field:
            said = message if field == OTHERS else plainly(message)
            self.by_field.setdefault(field, NEEDED if message == EMPTY else said)
        else:
            self.rest.append(message)

    def take(self, error: CallerError) -> None:
        """The refusal of an operation."""
        if isinstance(error, InvalidContent):
            for fault in error.faults:
                place = place_of(fault.field)
                self.add(place, f"{fault.field}: {fault.message}" if place == OTHERS else fault.message)
            return
        self.add(place_of(error.field), error.message)
        if isinstance(error, InvalidTrigger):
            self.position = error.position

    @property
    def any(self) -> bool:
        return bool(self.by_field or self.rest)


class Editing(Pages):
    """The pages at `/new-job` and `/jobs/NAME/edit`."""

    @Page("GET", "/new-job", "new-job", scope=Scope.JOBS_WRITE, place="jobs")
    async def new(self, visit: Visit) -> Answer:
        form = {**NEW, "timezone": visit.zone, OTHERS: ""}
        return self._form(form, None, Problems(), await self._preview(form, None, visit, Problems()))

    @Page("GET", "/jobs/{name}/edit", "edit-job", scope=Scope.JOBS_WRITE, also=Scope.JOBS_READ, place="jobs")
    async def edit(self, visit: Visit) -> Answer:
        job = await self._operations.jobs.get_job(visit.path_name)
        form = form_of(job)
        return self._form(form, job, Problems(), await self._preview(form, job, visit, Problems()))

    @Page("POST", "/new-job", "new-job-done", scope=Scope.JOBS_WRITE, place="jobs")
    async def create(self, visit: Visit) -> Answer:
        form, problems = _form(visit), Problems()
        definition = await self._definition(typed(form), problems)
        if definition is not None:
            if visit.text("paused"):
                definition = msgspec.structs.replace(definition, enabled=False)
            try:
                await self._operations.jobs.create_job(definition)
            except AlreadyExists:
                problems.add("name", "There is a job of this name. Choose another one, or edit that one.")
            except CallerError as error:
                problems.take(error)
            else:
                return Went(f"/jobs/{definition.name}", f"{definition.name} was created.")
        return self._form(form, None, problems, await self._preview(form, None, visit, problems), 422)

    @Page("POST", "/jobs/{name}/edit", "edit-job-done", scope=Scope.JOBS_WRITE, place="jobs")
    async def save(self, visit: Visit) -> Answer:
        job = await self._operations.jobs.get_job(visit.path_name)
        form, problems = {**_form(visit), "name": job.name}, Problems()
        form, clashes = merged(_was(visit), form_of(job), form)
        definition = await self._definition(typed(form, _base(job)), problems, job)
        for clash in clashes:
            problems.add(clash.field, clash.said)
        if clashes:
            problems.add(
                "", "Another person changed this job meanwhile. Below is yours: save it, or put theirs in its place."
            )
        if definition is not None and not clashes:
            try:
                await self._operations.jobs.put_job(definition)
            except CallerError as error:
                problems.take(error)
            else:
                return Went(f"/jobs/{job.name}", f"{job.name} was changed.")
        return self._form(form, job, problems, await self._preview(form, job, visit, problems), 422)

    @Page("POST", "/preview-job", "preview-job", scope=Scope.JOBS_WRITE, reads=True)
    async def preview(self, visit: Visit) -> Answer:
        """Asked again and again while one types: it changes nothing."""
        form, problems, job = _form(visit), Problems(), None
        if visit.text("editing"):
            job = await self._operations.jobs.get_job(visit.text("editing"))
            form["name"] = job.name
        shown = await self._preview(form, job, visit, problems)
        await self._definition(typed(form, _base(job) if job else None), problems, job)
        return Shown("preview.html", {**shown, "problems": problems, "form": form})

    # ---- the page

    async def _definition(self, made: Typed, problems: Problems, job: Job | None = None) -> JobDefinition | None:
        """The definition, checked as far as that goes without a write; None: something is wrong. `job`: the one that is
        edited, whose secrets are those behind the masks."""
        for fault in made.faults:
            problems.add(fault.field, fault.message)
        try:
            definition = to_definition(made.definition)
            jobs, now = self._operations.jobs, self._operations.clock.now()
            await (jobs.job_from(definition, now) if job is None else jobs.wanted(job, definition, now))
        except CallerError as error:
            problems.take(error)
            return None
        return None if made.faults else definition

    async def _preview(self, form: dict[str, str], job: Job | None, visit: Visit, problems: Problems) -> dict[str, Any]:
        made = typed(form, _base(job) if job else None)
        fires: list[Instant] = []
        words = ""
        for fault in made.faults:
            problems.add(fault.field, fault.message)
        if form["rule"].strip() and "rule" not in problems.by_field:
            try:
                found, words = await self._operations.jobs.preview(made.definition["trigger"], None, FIRES_SHOWN)
                fires = [to_instant(fire) for fire in found]
            except CallerError as error:
                problems.take(error)
        zone = form["timezone"].strip() or visit.zone
        return {
            "words": words,
            "fires": list(zip(fires, clock_changes(fires, zone), strict=True)),
            "preview_zone": zone,
            "command": as_command(made.definition),
            "as_json": json.dumps(made.definition, indent=2, ensure_ascii=False),
        }

    def _form(
        self, form: dict[str, str], job: Job | None, problems: Problems, shown: dict[str, Any], status: int = 200
    ) -> Shown:
        kinds = [*KINDS, *([OTHER] if form["kind"] == "json" else [])]
        as_it_is = (form["target"], form["target"].capitalize())
        values = {
            "form": dict.fromkeys((OTHERS, *OPTIONAL), "") | form,
            "job": job,
            "problems": problems,
            "kinds": kinds,
            "targets": TARGETS if form["target"] in dict(TARGETS) else [*TARGETS, as_it_is],
            "outcomes": OUTCOMES,
            "overlaps": OVERLAPS,
            "catch_ups": CATCH_UPS,
            "was": "" if job is None else json.dumps(form_of(job), ensure_ascii=False),
        }
        return Shown("edit.html", {**values, **shown}, status)


class Clash(Struct, frozen=True):
    """A field that two people changed from one value to different ones."""

    field: str
    was: str
    theirs: str

    @property
    def said(self) -> str:
        """One sentence for the form."""
        return f"It was {_quoted(self.was)} when you began, and is {_quoted(self.theirs)} now."


def _quoted(text: str) -> str:
    return f"\u201c{text}\u201d" if text.strip() else "empty"


def merged(
    was: dict[str, str] | None, theirs: dict[str, str], mine: dict[str, str]
) -> tuple[dict[str, str], list[Clash]]:
    """A form in which each field is as the one who changed it wants it, and the fields that both changed, as `mine`.
    `was`: the form that `mine` began with; None: not known, and nothing is merged."""
    if was is None:
        return mine, []
    same = {name for name in mine if _plain(mine[name]) == _plain(was.get(name, ""))}
    both = [
        Clash(name, was.get(name, ""), theirs[name])
        for name in mine
        if name not in same and _plain(theirs[name]) not in (_plain(was.get(name, "")), _plain(mine[name]))
    ]
    return {name: theirs[name] if name in same else mine[name] for name in mine}, both


def _plain(text: str) -> str:
    """Line ends as the server writes them."""
    return text.replace("\r\n", "\n").strip()


def _was(visit: Visit) -> dict[str, str] | None:
    """The form as it was when the page was made, which it brings along."""
    try:
        return msgspec.json.decode(visit.text("was"), type=dict[str, str])
    except msgspec.DecodeError:
        return None


def _form(visit: Visit) -> dict[str, str]:
    """The fields of the form; those that were not sent are as for a new job, and all others as stored."""
    form = {name: visit.form[name][0] if name in visit.form else text for name, text in NEW.items()}
    return form | {name: visit.text(name) for name in (OTHERS, *OPTIONAL) if name in visit.form}


def _base(job: Job) -> dict[str, Any]:
    base: dict[str, Any] = json.loads(msgspec.json.encode(definition_of(job)))
    base.pop("enabled", None)
    return base
