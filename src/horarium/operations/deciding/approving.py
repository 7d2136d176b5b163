"""Requests about pending decisions: runs are approved or rejected; of fire times that were missed none runs,
the latest, or all of them.

A record leads to each run that waits, written with it; the run itself says whether it still does. A decision is one
write of the run, if it is as it was read: so of two at the same time one counts, and the other is told whose it was.
The same of a job that asks about missed fire times: they are planned as decided, by this node or another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.access.roles import LOCAL, SCOPES, Principal, Role
from horarium.clock import to_text
from horarium.errors import AlreadyDecided, Forbidden, InvalidRequest, NotFound
from horarium.model import EventKind, Job, Plan, Run, RunChange, State
from horarium.model.overrides import REASON_CHARS_MAX
from horarium.model.records import RecordFilter, instant_key
from horarium.operations.bounds.reaching import may_reach_run, within_reach
from horarium.operations.jobs.changes import Changes, Seen, always
from horarium.operations.jobs.grouping import Reach
from horarium.operations.jobs.versions import KEPT, Version, Versions
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import RACES_MAX, Context, contended
from horarium.operations.writing.keeping import page_under
from horarium.operations.writing.named import jobs_by_id, jobs_of
from horarium.policies import CatchUpPolicy
from horarium.ports import PAGE_MAX, Page
from horarium.rules.approving import approval_of, approved, is_waiting, last_word, rejected, said
from horarium.rules.asking import MISSED, OPEN, Question, Waiting, question_of
from horarium.rules.missed import as_run, decided, is_asked
from horarium.rules.planning import timed
from horarium.rules.settling import noted
from horarium.wire.approvals import Decision
from horarium.wire.definitions import JobDefinition

MISSED_DECISIONS = {
    "reject": CatchUpPolicy.NONE,
    "none": CatchUpPolicy.NONE,
    "latest": CatchUpPolicy.LATEST,
    "all": CatchUpPolicy.ALL,
}
"""Those about fire times that were missed."""


class Approving:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, settling: Settling, versions: Versions, changes: Changes) -> None:
        self._store, self._clock = context.store, context.clock
        self._settling = settling
        self._versions = versions
        self._changes = changes

    async def page(self, reader: Principal | None, after: str | None, limit: int) -> Page[Waiting]:
        """The runs that wait for a decision, the soonest end first. A page may be short."""
        since = instant_key(self._clock.now() + 1)
        page = await page_under(self._store, RecordFilter(OPEN, since=since), OPEN, after, limit)
        questions = [question_of(record) for _, record in page.items]
        runs = await self._store.get_runs([each.run_id for each in questions]) if questions else []
        asking = [each.job_id for each in questions if each.job_id]
        jobs = await jobs_by_id(self._store, [*(run.job_id for run in runs if run is not None), *asking])
        found, versions = list[Waiting](), dict[str, Sequence[Version]]()
        for question, stored in zip(questions, runs, strict=True):
            job = jobs.get(question.job_id or (stored and stored.job_id) or "")
            run = _missed_of(job, question) if question.job_id else stored
            if run is not None and job is not None and is_waiting(run) and _may_see(reader, run, job):
                known = versions[job.id] = versions.get(job.id) or await self._newest(job)
                why_not = await self._why_not(reader, job, question, known)
                found.append(Waiting(run, job, question, why_not, known[0].version, known[0].at))
        return Page(tuple(found), page.next_after)

    async def count(self, reader: Principal | None) -> int:
        """How many wait, as far as one page has them."""
        return len((await self.page(reader, None, PAGE_MAX)).items)

    async def decide(self, id: str, decision: Decision, reason: str | None = None) -> Run:
        """Let the run begin, or not; or say how many of the fire times run that were missed (`reject`: none). Raises
        NotFound, Forbidden, AlreadyDecided."""
        if reason is not None and len(reason) > REASON_CHARS_MAX:
            raise InvalidRequest(f"reason: at most {REASON_CHARS_MAX:,} characters are kept", field="reason")
        question, policy = await self._about_missed(id), MISSED_DECISIONS.get(decision)
        if question is not None and policy is not None:
            return await self._decide_missed(question, policy, reason)
        if question is not None:
            raise InvalidRequest("decision: about missed fire times it is none, latest or all", field="decision")
        return await self._decide_run(id, decision, reason)

    async def _decide_run(self, id: str, decision: Decision, reason: str | None) -> Run:
        origin = who_acts()
        by = "" if origin is None else origin.principal.name
        for _ in range(RACES_MAX):
            run, job = await self._asked(id)
            if decision not in ("approve", "reject"):
                raise InvalidRequest("decision: a run waits for approve or reject", field="decision")
            now = self._clock.now()
            question, versions = await self._question(run), await self._newest(job)
            why_not = await self._why_not(None if origin is None else origin.principal, job, question, versions)
            if why_not is not None:
                raise Forbidden(why_not)
            asker = question.by, question.by_name
            after = (
                approved(run, job, versions[0].version, now, by, reason, asker)
                if decision == "approve"
                else rejected(run, job, now, by, reason)
            )
            change = RunChange(
                after,
                run.token,
                run.state,
                records=told(
                    f"approval.{decision}", f"run/{run.id}", now,
                    before={"state": run.state, "expires_at": to_text(run.due_at)},
                    after={"state": after.state, "reason": reason},
                ),
            )  # fmt: skip
            if (await self._settling.write([change], {job.id: job}, now))[0]:
                await self._forget(run)
                return after
        raise contended(id)

    async def _decide_missed(self, question: Question, policy: CatchUpPolicy, reason: str | None) -> Run:
        """The first of the rows that this makes, or what stands for them until they are made."""
        id = question.run_id
        job = (await jobs_by_id(self._store, [question.job_id])).get(question.job_id)
        (stands,) = await self._store.get_runs([id]) if job is None or job.missed is None else (as_run(job),)
        if stands is None or not await within_reach(self._store, [stands]):
            raise NotFound(f"nothing {id!r} was asked about")
        if job is None or job.deleted_at is not None:
            raise _over(stands.job, stands)
        origin = who_acts()
        why_not = await self._why_not(None if origin is None else origin.principal, job, question)
        if why_not is not None:
            raise Forbidden(why_not)
        by = "" if origin is None else origin.principal.name
        asked: list[Run] = []

        async def decide(seen: Seen) -> Plan:
            missed = seen.job.missed
            if missed is None or missed.id != id or not is_asked(seen.job):
                raise await self._decided_before(id, seen.job)
            told = said(f"{policy}, decided", by, reason)
            asked[:] = [noted(as_run(seen.job), seen.now, told, EventKind.DECIDED)]
            return Plan(timed(decided(seen.job, policy, by, reason, seen.now)))

        await self._changes.change(job.name, decide, always(Reach.NONE), f"approval.{policy}")
        planned, _ = await self._changes.planned_up_to_now(job.name)
        (made,) = await self._store.get_runs([id])
        if planned is not None and planned.missed is None and made is not None and last_word(made) is not None:
            await self._forget(asked[0])
        return made or asked[0]

    async def _about_missed(self, id: str) -> Question | None:
        """The question of that id about missed fire times, which may be over."""
        found = await self._store.list_records(RecordFilter(OPEN, labels={MISSED: id}), None, 1)
        return question_of(found.items[0]) if found.items else None

    async def _decided_before(self, id: str, job: Job) -> AlreadyDecided:
        missed = job.missed
        if missed is None or missed.id != id or missed.decision is None:
            return _over(job.name, *await self._store.get_runs([id]))
        told = said(f"{missed.decision}, decided", missed.by, missed.reason)
        return AlreadyDecided(f"what job {job.name!r} missed waits no longer for a decision: {told}")

    async def _asked(self, id: str) -> tuple[Run, Job]:
        """The run of that id, which waits, and its job."""
        (run,) = await self._store.get_runs([id])
        if run is None or last_word(run) is None or not await within_reach(self._store, [run]):
            raise NotFound(f"no run {id!r} was asked about")
        last = last_word(run)
        jobs = await jobs_of(self._store, [run])
        job = jobs.get(run.job_id or "")
        if not is_waiting(run) or run.state is not State.PENDING or job is None:
            if last is None or is_waiting(run):
                told = "it is over"
            elif last.kind is EventKind.ASKED:
                told = f"it is {run.state}" + (f" ({run.error})" if run.error else "")
            else:
                told = f"{last.message}, at {to_text(last.at)}"
            raise AlreadyDecided(f"run {run.id} waits no longer: {told}")
        return run, job

    async def _question(self, run: Run) -> Question:
        """Who asked for the run, from its record."""
        (record,) = await self._store.get_records([Question.name_of(run.due_at, run.id)])
        return Question(run.id, run.due_at) if record is None else question_of(record)

    async def _forget(self, run: Run) -> None:
        """The record is of no use any more. Where this fails, lists pass over it, until it is pruned."""
        (record,) = await self._store.get_records([Question.name_of(run.due_at, run.id)])
        if record is not None:
            await self._store.put_records([record.removal()])

    async def _newest(self, job: Job) -> Sequence[Version]:
        """The versions of the job by which it is judged who may decide; the newest is the present one."""
        return (await self._versions.page(job, None, KEPT if approval_of(job).four_eyes else 1)).items

    async def _why_not(
        self, caller: Principal | None, job: Job, question: Question, versions: Sequence[Version] = ()
    ) -> str | None:
        """Why this caller may not decide; None: it may."""
        approval, caller = approval_of(job), caller or LOCAL
        if not any(SCOPES[Role(role)] <= caller.scopes for role in approval.roles):
            return f"{caller.name} may not decide this; it takes the role {' or '.join(approval.roles)}"
        if not approval.four_eyes:
            return None
        if question.by and question.by == caller.subject:
            return f"{caller.name} asked for this run; another person must decide (four_eyes)"
        if caller.subject in _definers(versions or await self._newest(job)):
            return f"{caller.name} defined this job; another person must decide (four_eyes)"
        return None


def _over(job: str | None, row: Run | None) -> AlreadyDecided:
    last = None if row is None else last_word(row)
    told = "it is over" if last is None else f"{last.message}, at {to_text(last.at)}"
    return AlreadyDecided(f"what job {job!r} missed waits no longer for a decision: {told}")


def _definers(versions: Sequence[Version]) -> set[str]:
    """The subjects of who edited the job last, and of who gave it its present target. `versions`: the newest first. A
    pause is no edit."""
    found: set[str] = set()
    befores: list[Version | None] = [*versions[1:], None]
    for version, before in zip(versions, befores, strict=False):
        if before is None or version.definition.target != before.definition.target:
            return {*found, version.actor} - {""}
        if not found and _content(version) != _content(before):
            found.add(version.actor)
    return found - {""}


def _content(version: Version) -> JobDefinition:
    return replace(version.definition, enabled=UNSET)


def _may_see(reader: Principal | None, run: Run, job: Job) -> bool:
    return reader is None or may_reach_run(reader, run, job)


def _missed_of(job: Job | None, question: Question) -> Run | None:
    """What stands for the fire times that the job asks about in this question."""
    if job is None or job.missed is None or not is_asked(job) or job.missed.id != question.run_id:
        return None
    return as_run(job)
