"""The endpoints under /jobs, and /preview."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from horarium.access.roles import Scope
from horarium.api import examples
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer, no_content
from horarium.api.pings import Shown
from horarium.api.problems import InvalidContent, problem_of
from horarium.api.reading import (
    PATCH_TYPES,
    check_rule,
    idempotency_key,
    is_place,
    job_name,
    read_cursor,
    read_job,
    read_new_job,
    read_object,
    to_definition,
    without_read_only,
    write_cursor,
)
from horarium.api.schemas import (
    BackfillAnswer,
    BackfillRequest,
    Fires,
    FiresQuery,
    Imported,
    ImportRequest,
    JobPage,
    JobPatch,
    JobQuery,
    JobReplacement,
    PauseRequest,
    PreviewRequest,
    TriggerRequest,
)
from horarium.errors import AlreadyExists, CallerError, Forbidden, HorariumError, InvalidJob, InvalidTrigger, NotFound
from horarium.model import Job, encode_payload
from horarium.model.overrides import OVERRIDES_MAX
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import Slices
from horarium.operations.bounds.reaching import require_asked
from horarium.operations.facade import Operations
from horarium.operations.jobs.importing import Put
from horarium.operations.looking.forecasting import FORECAST_STEPS
from horarium.ports import JobFilter
from horarium.triggers.budget import PLAN_STEPS, apart
from horarium.triggers.dialects import warnings_of
from horarium.wire.definitions import JobDefinition, definition_of, with_definition
from horarium.wire.faults import Fault, find_faults
from horarium.wire.overrides import override_views
from horarium.wire.patches import patch_definition
from horarium.wire.views import JobView, RunView, run_view

INVALID_JOB = ("invalid_job", "invalid_trigger", "too_expensive")


class Jobs(Handlers):
    def __init__(self, operations: Operations, public_url: str | None = None) -> None:
        super().__init__(operations)
        self._shown = Shown(operations, public_url)

    @Endpoint(
        "POST", "/jobs", "createJob", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Define a job",
        description="A name that is taken gives 409. With an `Idempotency-Key`, a job that exists with the "
        "very same content is the answer (200): so a request whose answer was lost can be sent again.",
        body=JobDefinition, read=read_new_job, headers=examples.IDEMPOTENCY, examples=examples.JOBS,
        answers={201: (JobView, "The job"), 200: (JobView, "The job existed with this content already")},
        problems=("already_exists", *INVALID_JOB),
    )  # fmt: skip
    async def create(self, call: Call) -> Answer:
        definition: JobDefinition = call.body
        key = idempotency_key(call.request)
        try:
            job = await self._operations.jobs.create_job(definition)
        except (AlreadyExists, InvalidTrigger) as error:
            if key is None:
                raise
            return await self._shown.answer(call, await self._same(definition, error))
        return await self._shown.answer(call, job, 201, [("location", f"/api/v1/jobs/{job.name}")])

    async def _same(self, definition: JobDefinition, refused: AlreadyExists | InvalidTrigger) -> Job:
        """The stored job, if it has this content: the earlier answer to the same request was lost on its way. (Its rule
        may have no fire time left by now.)"""
        try:
            job = await self._operations.jobs.get_job(definition.name)
        except NotFound:
            raise refused from None
        try:
            kept = partial(with_definition, job, definition, now=job.anchor_at, check_target=_unchecked)
            same = await evaluate(kept, PLAN_STEPS) == job
        except CallerError:
            same = False
        if not same:
            if not isinstance(refused, AlreadyExists):
                raise refused
            raise AlreadyExists(
                f"job {job.name!r} exists already, with other content; use PUT to replace it", field="name"
            )
        return job

    @Endpoint(
        "GET", "/jobs", "listJobs", tag="jobs", scope=Scope.JOBS_READ, query=JobQuery, bound=True, costly=True,
        summary="List jobs by name",
        description="Those that can never fire again (`finished`) are left out unless they are asked for.",
        answers={200: (JobPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_jobs(self, call: Call) -> Answer:
        query: JobQuery = call.query
        where = JobFilter(
            labels=dict(pair.split("=", 1) for pair in query.label),
            enabled=None if query.enabled is UNSET else query.enabled,
            name_prefix=None if query.prefix is UNSET else query.prefix or None,
            finished={"false": False, "true": True, "any": None}[query.finished],
        )
        after = read_cursor("jobs", query.cursor, is_place)
        page = await self._operations.jobs.list_jobs(where, after, query.limit)
        seen = await self._shown.each(call, page.items)
        return answer(JobPage(seen, write_cursor("jobs", page.next_after)))

    @Endpoint(
        "GET", "/jobs/{name}", "getJob", tag="jobs", scope=Scope.JOBS_READ,
        summary="Show a job",
        answers={200: (JobView, "The job")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        return await self._shown.answer(call, await self._operations.jobs.get_job(job_name(call.request)))

    @Endpoint(
        "PUT", "/jobs/{name}", "putJob", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Define a job, or replace its definition",
        description="Idempotent: content that does not change never moves the next fire time. `name` may be "
        "left out of the body; if it is there it must be the one in the path. The server's own fields (`id`, "
        "`next_fire_at`, ...) are ignored, so what GET gave can be edited and put back.",
        body=JobReplacement, read=read_job, examples=examples.JOBS,
        answers={200: (JobView, "The job as it now is"), 201: (JobView, "The job is new")},
        problems=("conflict", *INVALID_JOB),
    )  # fmt: skip
    async def put(self, call: Call) -> Answer:
        name = call.request.path_params["name"]
        given = call.body.setdefault("name", name)
        if given != name:
            raise InvalidContent([Fault("name", f"is not {name!r}, the name in the path; a job can't be renamed")])
        job, created = await self._operations.jobs.put_job(to_definition(call.body))
        location = [("location", f"/api/v1/jobs/{job.name}")] if created else []
        return await self._shown.answer(call, job, 201 if created else 200, location)

    @Endpoint(
        "PATCH", "/jobs/{name}", "patchJob", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Change parts of a job",
        description="A JSON merge patch (RFC 7396): null takes a field back to its default, objects merge.",
        body=JobPatch, read=read_job, body_types=PATCH_TYPES, examples=examples.PATCHES,
        answers={200: (JobView, "The job as it now is")}, problems=("not_found", "conflict", *INVALID_JOB),
    )  # fmt: skip
    async def patch(self, call: Call) -> Answer:
        name, changes = job_name(call.request), call.body
        check_rule(changes.get("trigger"))
        try:
            return await self._shown.answer(call, await self._operations.jobs.patch_job(name, changes))
        except InvalidJob:
            job = await self._operations.jobs.get_job(name)
            patched = patch_definition(msgspec.to_builtins(definition_of(job)), changes)
            faults = find_faults(patched, JobDefinition)
            if not faults:
                raise
            raise InvalidContent(faults, InvalidJob.code) from None

    @Endpoint(
        "DELETE", "/jobs/{name}", "deleteJob", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Delete a job",
        description="Its pending runs are cancelled, running ones asked to stop; its history stays a while.",
        answers={204: (None, "It is gone")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def delete(self, call: Call) -> Answer:
        await self._operations.jobs.delete_job(job_name(call.request))
        return no_content()

    @Endpoint(
        "POST", "/import", "importJobs", tag="jobs", scope=Scope.JOBS_WRITE, costly=True, alone=True,
        summary="Define many jobs, or bring them to this content, in one request",
        description="At most 1,000. Each job is put for itself: the answers are in the order of the jobs. "
    "Importing again changes nothing. New jobs with an interval and no anchor begin spread evenly over it. (It "
    "is not under /jobs, where a job may have any name.)",
        body=ImportRequest, examples=examples.IMPORTS,
        answers={200: (list[Imported], "One answer for each job")},
    )  # fmt: skip
    async def import_jobs(self, call: Call) -> Answer:
        asked: ImportRequest = call.body
        answers: list[Imported | None] = []
        definitions: list[JobDefinition] = []
        slices = Slices()
        for fields in asked.jobs:
            await slices.give_way()
            try:
                definitions.append(to_definition(without_read_only(fields)))
                answers.append(None)
            except CallerError as error:
                answers.append(_not_imported(fields.get("name"), error))
        asked.jobs.clear()  # read, they would take their room until the import is answered
        with apart(FORECAST_STEPS):
            put = (
                await self._operations.importing.put_jobs(definitions, dry_run=asked.dry_run, owned_by=asked.owned_by)
                if definitions
                else []
            )
        warnings = await self._operations.importing.warnings(definitions)
        done = [(job.name, each, why) for job, each, why in zip(definitions, put, warnings, strict=True)]
        refused = [(each, ("job.update", f"job/{name}")) for name, each, _ in done if isinstance(each, Forbidden)]
        if not asked.dry_run:
            call.refuse(refused, len(refused))
        each_done = iter(done)
        return answer([_imported(*next(each_done)) if each is None else each for each in answers])

    @Endpoint(
        "POST", "/jobs/{name}/pause", "pauseJob", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Pause a job",
        description="With `until`, it goes on by itself then. A paused job stays as it is, but for that.",
        body=PauseRequest, optional_body=True,
        answers={200: (JobView, "The job, paused")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def pause(self, call: Call) -> Answer:
        asked: PauseRequest = call.body or PauseRequest()
        job = await self._operations.jobs.pause_job(job_name(call.request), asked.reason, asked.until)
        return await self._shown.answer(call, job)

    @Endpoint(
        "POST", "/jobs/{name}/resume", "resumeJob", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Resume a job",
        description="It goes on with the fire times from now on.",
        body=dict[str, Any], read=read_object, optional_body=True,
        answers={200: (JobView, "The job, going on")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def resume(self, call: Call) -> Answer:
        return await self._shown.answer(call, await self._operations.jobs.resume_job(job_name(call.request)))

    @Endpoint(
        "POST", "/jobs/{name}/trigger", "triggerJob", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Run a job now",
        description="A payload of its own takes the scope `runs:define` too. The run obeys the overlap policy "
        "of its job, so it may come back `skipped`. With an `Idempotency-Key`, the same request again answers "
        "with the run that was made the first time.",
        body=TriggerRequest, nul=True, optional_body=True, headers=examples.IDEMPOTENCY,
        answers={201: (RunView, "The run")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def trigger(self, call: Call) -> Answer:
        name = job_name(call.request)
        payload = encode_payload(call.body.payload) if call.body else None
        if payload is not None:
            call.principal.require(Scope.RUNS_DEFINE)
        key = idempotency_key(call.request)
        run = await self._operations.jobs.trigger_job(name, payload, key)
        if key is not None:
            require_asked(run, payload)
        return answer(run_view(run), 201, [("location", f"/api/v1/runs/{run.id}")])

    @Endpoint(
        "POST", "/jobs/{name}/backfill", "backfillJob", tag="jobs", scope=Scope.RUNS_WRITE,
        summary="Make runs for fire times of the past",
        description="At most 1,000. Fire times that have a run already keep theirs. `left` says how many fire "
        "times of the span are left for another request, which begins at `next_start`.",
        body=BackfillRequest, examples=examples.BACKFILLS,
        answers={201: (BackfillAnswer, "The runs that were made")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def backfill(self, call: Call) -> Answer:
        asked: BackfillRequest = call.body
        made = await self._operations.jobs.backfill_job(job_name(call.request), asked.start, asked.end)
        runs = [run_view(run) for run in made.runs]
        return answer(BackfillAnswer(runs, made.left, made.next_start), 201)

    @Endpoint(
        "GET", "/jobs/{name}/fires", "listFires", tag="jobs", scope=Scope.JOBS_READ, query=FiresQuery, costly=True,
        summary="The next fire times of a job",
        answers={200: (Fires, "Fire times")}, problems=("not_found", "too_expensive"),
    )  # fmt: skip
    async def fires(self, call: Call) -> Answer:
        name = job_name(call.request)
        fires, words = await self._operations.jobs.fires(name, call.query.count)
        overrides, _ = await self._operations.overriding.page(name, None, OVERRIDES_MAX)
        return answer(Fires(fires, words, override_views(overrides) or UNSET))

    @Endpoint(
        "POST", "/preview", "previewTrigger", tag="jobs", scope=Scope.JOBS_READ, costly=True,
        summary="The fire times of a trigger",
        description="Nothing is stored.",
        body=PreviewRequest, examples=examples.PREVIEWS,
        answers={200: (Fires, "Fire times")}, problems=("invalid_trigger", "too_expensive"),
    )  # fmt: skip
    async def preview(self, call: Call) -> Answer:
        asked: PreviewRequest = call.body
        check_rule(asked.trigger)
        fires, words = await self._operations.jobs.preview(asked.trigger, asked.after, asked.count)
        return answer(Fires(fires, words, warnings=warnings_of(asked.trigger) or UNSET))


def _not_imported(name: Any, error: HorariumError) -> Imported:
    return Imported(name if isinstance(name, str) else "", "failed", problem_of(error))


def _imported(name: str, done: Put | HorariumError, warning: str) -> Imported:
    if isinstance(done, HorariumError):
        return _not_imported(name, done)
    return Imported(name, done.value, warning=warning or UNSET)


def _unchecked(target: object) -> None:
    """A comparison writes nothing, so the target need not be checked again."""
