"""Many runs retried or cancelled in one request: those with these ids, or those that fit a filter.

A request works through one bounded batch and says where the next one begins. Runs are walked from the newest down, and
what a retry makes lies above the beginning, so no batch meets what an earlier one made. Repeating a batch does no harm:
a retry is made under a unique key of the run that it repeats, and a cancel of a finished run changes nothing.

What a batch writes is written together: the one-off runs in one transaction, those of jobs whose runs may overlap in
another, those of a job with any other policy in one plan of that job, and all cancels in one. A cancel names the token
and the state that were read, so one that loses to a claim is read and decided again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.clock import SECOND, Instant
from horarium.errors import Forbidden, InvalidRequest, NotFound
from horarium.model import CLAIMED, RETRY_KEY, Cause, Job, Plan, Run, RunChange, State, retry_key, uuid7s
from horarium.model import run_id as run_id_of
from horarium.operations.bounds.reaching import require_job, within_reach
from horarium.operations.jobs.changes import Changes, Seen, always
from horarium.operations.jobs.grouping import Reach
from horarium.operations.jobs.triggering import Request, Triggered, Triggering
from horarium.operations.runs.runs import RETRIED, fresh_run
from horarium.operations.settling.batching import Batching
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.auditing import told_asked, told_cancel, told_runs
from horarium.operations.writing.context import RACES_MAX, Context, pause_after
from horarium.operations.writing.named import jobs_of
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import BATCH_MAX, CANCEL, RunFilter
from horarium.rules.batches import batch_of
from horarium.rules.editing import ManualRun, plan_many_now, put_off
from horarium.rules.joins import fire_of
from horarium.rules.planning import needs_unfinished, owed_run
from horarium.rules.settling import cancel, retention_of

LOOKED_MAX = 10_000
"""Runs that one batch looks at; a filter may fit few of them."""
RETRIED_KNOWN_MAX = 1_000
"""Of no more runs it is known how many were retried before; each is a question to the store."""
RETRIED_BEFORE, OVERLAP, DELETED, FORBIDDEN, OVER = "retried_before", "overlap", "job_deleted", "forbidden", "state"
KEY_MISSING = "key_missing"
"""Why a run that matched was left as it is."""
CANCELLED = frozenset({State.PENDING, State.RUNNING})


class Selection(Struct, frozen=True, kw_only=True):
    """Which runs are meant: these ids, or those that fit. `error_contains`: a text in their error; `any_case`: capitals
    or not."""

    ids: tuple[str, ...] | None = None
    where: RunFilter = RunFilter()
    error_contains: str | None = None
    any_case: bool = False


class Batch(Struct, kw_only=True):
    """The result of one batch. `matched`: how many runs fit; `done`: to how many it was done; `left`: why not to the
    others. `after`: where the next batch begins, below that id (None: there is none), and not before `next_at`."""

    matched: int = 0
    done: int = 0
    left: Mapping[str, int] = {}
    after: str | None = None
    next_at: Instant = 0


class Bulk:
    """Retries and cancels many runs of one namespace."""

    def __init__(
        self,
        context: Context,
        changes: Changes,
        triggering: Triggering,
        settling: Settling,
        cancel_asked: Callable[[Run], None],
    ) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._changes = changes
        self._triggering = triggering
        self._settling = settling
        self._rating = Rating(context)
        self._batching = Batching(context)
        self._cancel_asked = cancel_asked

    # ---- which

    async def count(
        self, selection: Selection, states: frozenset[State], after: str | None, most: int = LOOKED_MAX
    ) -> Batch:
        """How many fit, up to `most`, among the first 10,000 that are looked at."""
        found, following = await self._find(selection, states, after, most)
        return Batch(matched=len(found), after=following)

    async def count_retries(
        self,
        selection: Selection,
        states: frozenset[State],
        after: str | None = None,
        of_more: int = RETRIED_KNOWN_MAX,
        most: int = LOOKED_MAX,
    ) -> Batch:
        """The same for a retry, with how many of them were retried before; where they are more than a thousand, of the
        first `of_more`."""
        found, following = await self._find(selection, states, after, most)
        known, before = found if len(found) <= RETRIED_KNOWN_MAX else found[:of_more], 0
        for at in range(0, len(known), BATCH_MAX):
            before += sum(await asyncio.gather(*map(self._was_retried, known[at : at + BATCH_MAX])))
        return Batch(matched=len(found), after=following, left={RETRIED_BEFORE: before} if before else {})

    async def _find(
        self, selection: Selection, states: frozenset[State], after: str | None, limit: int
    ) -> tuple[list[Run], str | None]:
        """The first runs below `after` that fit, and where to go on. Raises NotFound for a job that is not there, and
        of which there are none."""
        if selection.ids is not None:
            return await self._named(selection.ids, states, after, limit)
        where, is_first = selection.where, after is None
        found: list[Run] = []
        for _ in range(0, LOOKED_MAX, BATCH_MAX):
            page = await self._store.list_runs(where, after, min(BATCH_MAX, limit - len(found)))
            seen = await self._reached(page.items, states)
            found += (run for run in seen if _has_error(run, selection))
            after = page.next_after
            if after is None or len(found) >= limit:
                break
        if is_first and not found and where.job is not None:
            await require_job(self._store, where.job)
        return found, after

    async def _named(
        self, ids: Sequence[str], states: frozenset[State], after: str | None, limit: int
    ) -> tuple[list[Run], str | None]:
        ids = sorted({given for given in ids if after is None or given < after}, reverse=True)
        taken = ids[:limit]
        runs = [run for run in await self._store.get_runs(taken) if run is not None]
        return [*await self._reached(runs, states)], taken[-1] if len(ids) > limit else None

    async def _reached(self, runs: Sequence[Run], states: frozenset[State]) -> Sequence[Run]:
        """Those in these states that the caller may touch."""
        return await within_reach(self._store, [run for run in runs if run.state in states])

    # ---- retry

    async def retry(
        self, selection: Selection, states: frozenset[State], after: str | None, per_second: float | None, due: Instant
    ) -> Batch:
        """New runs for the work of those in these states (of `RETRIED`), each once for as long as its retry is kept.
        They fall due `per_second`, from `due` on, the oldest first."""
        assert states <= RETRIED, states
        found, following = await self._find(selection, states, after, BATCH_MAX)
        start, pace = max(due, self._clock.now()), 0 if per_second is None else round(SECOND / per_second)
        asked = {run.id: start + number * pace for number, run in enumerate(reversed(found))}
        jobs = await jobs_of(self._store, found)
        left: Counter[str] = Counter()
        done = await self._retry_one_offs([run for run in found if run.job_id is None], asked, left)
        free: list[Run] = []
        in_turn: dict[str, list[Run]] = {}
        for run in reversed(found):
            job = jobs.get(run.job_id or "")
            if run.job_id is None:
                continue
            if job is None or job.deleted_at is not None:
                left[DELETED] += 1
            elif needs_unfinished(job):
                in_turn.setdefault(job.name, []).append(run)
            else:
                free.append(run)
        done += await self._retry_free(free, asked, left, in_turn)
        for name, runs in in_turn.items():
            done += await self._retry_in_turn(name, runs, asked, left)
        return Batch(matched=len(found), done=done, left=+left, after=following, next_at=start + len(found) * pace)

    async def _retry_one_offs(self, runs: Sequence[Run], asked: Mapping[str, Instant], left: Counter[str]) -> int:
        if not runs:
            return 0
        now = self._clock.now()
        ids = uuid7s(now, self._entropy(10), len(runs))
        again = [
            _keyed(put_off(fresh_run(run, id=id, now=now), asked[run.id]), run)
            for run, id in zip(reversed(runs), ids, strict=True)
        ]
        told = {new.id: _told(run) for new, run in zip(again, reversed(runs), strict=True)}
        again = await self._rating.lined_up(await self._triggering.holding.all_said(again, None))
        pairs = [(run, new) for run, new in zip(reversed(runs), again, strict=True) if batch_of(run) is not None]
        members = {new.id for _, new in pairs}
        again = [run for run in again if run.id not in members]
        added = sum(await self._store.add_runs(again, told_runs(again, told))) if again else 0
        added += sum(await self._batching.again(pairs, told)) if pairs else 0
        announce_runs(self._signal, again)
        left[RETRIED_BEFORE] += len(runs) - added
        return added

    async def _retry_free(
        self, runs: Sequence[Run], asked: Mapping[str, Instant], left: Counter[str], in_turn: dict[str, list[Run]]
    ) -> int:
        """Runs of jobs whose runs may overlap. Those of a job that got another policy meanwhile go to `in_turn`."""
        origin = who_acts()
        group = [
            Request(run.job or "", run.payload, _key(run), _told(run), origin, asked[run.id], repeats=fire_of(run))
            for run in runs
        ]
        answers = await self._triggering.trigger_all(group) if group else []
        for answer, run in zip(answers, runs, strict=True):
            if isinstance(answer, NotFound | Forbidden):
                left[DELETED if isinstance(answer, NotFound) else FORBIDDEN] += 1
            elif isinstance(answer, InvalidRequest):
                left[KEY_MISSING] += 1
            elif isinstance(answer, Exception):
                raise answer
            elif answer.run is None:
                in_turn.setdefault(run.job or "", []).append(run)
            elif not answer.new:
                left[RETRIED_BEFORE] += 1
        return sum(isinstance(answer, Triggered) and answer.new for answer in answers)

    async def _retry_in_turn(
        self, name: str, runs: Sequence[Run], asked: Mapping[str, Instant], left: Counter[str]
    ) -> int:
        """Runs of one job whose policy asks for a look at its other runs."""
        wanted: list[ManualRun] = []
        made = without_key = 0

        async def decide(seen: Seen) -> Plan | None:
            """Once the job was read: who retries one of these from then on raises the version of the job."""
            nonlocal wanted, made, without_key
            keys = {run.unique_key for run in seen.unfinished}
            left_to_do = [run for run in runs if _key(run) not in keys and not await self._was_retried(run)]
            again = [run for run in left_to_do if _has_keys(run, seen)]
            without_key = len(left_to_do) - len(again)
            wanted, made = [ManualRun(run.payload, _key(run), asked[run.id], fire_of(run)) for run in again], 0
            if not wanted:
                return None
            instants = range(seen.now, seen.now + len(wanted) + BATCH_MAX)
            there = await self._store.get_runs([run_id_of(seen.job.id, instant) for instant in instants])
            taken = {instant for instant, run in zip(instants, there, strict=True) if run is not None}
            planned = plan_many_now(seen.job, seen.unfinished, seen.now, wanted, taken)
            planned = replace(planned, runs=tuple(await self._triggering.holding.all_said(planned.runs, seen.job)))
            made = len(planned.runs)
            told = {run.id: tuple(told_asked(who_acts(), _told_again(run), run, seen.now)) for run in planned.runs}
            return replace(planned, along=told) if planned.runs else None

        try:
            await self._changes.change(name, decide, always(Reach.ALL))
        except (NotFound, Forbidden) as error:
            left[DELETED if isinstance(error, NotFound) else FORBIDDEN] += len(runs)
            return 0
        left[RETRIED_BEFORE] += len(runs) - len(wanted) - without_key
        left[KEY_MISSING] += without_key
        left[OVERLAP] += len(wanted) - made
        return made

    async def _was_retried(self, run: Run) -> bool:
        return await self._store.get_run_by_key(_key(run)) is not None

    # ---- cancel

    async def cancel(
        self,
        selection: Selection,
        states: frozenset[State],
        after: str | None,
        per_second: float | None,
        reason: str,
    ) -> Batch:
        """Cancel those in these states (of `CANCELLED`): pending ones at once, running ones are asked to stop. With
        `per_second`, a batch is a second's worth of cancels, and the next one follows after that."""
        limit = BATCH_MAX if per_second is None else max(1, min(BATCH_MAX, int(per_second)))
        found, following = await self._find(selection, states, after, limit)
        done, todo = 0, found
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
                todo = [run for run in await self._store.get_runs([run.id for run in todo]) if run is not None]
                todo = [run for run in todo if run.state in CANCELLED]
            if not todo:
                break
            lost = await self._cancel_once(todo, reason)
            done += len(todo) - len(lost)
            todo = lost
        wait = 0 if per_second is None else round(len(found) * SECOND / per_second)
        over = {OVER: len(found) - done} if done < len(found) else {}
        return Batch(matched=len(found), done=done, left=over, after=following, next_at=self._clock.now() + wait)

    async def _cancel_once(self, runs: Sequence[Run], reason: str) -> list[Run]:
        """Cancel these in one write. Those that were claimed, put back or settled meanwhile."""
        jobs = await jobs_of(self._store, runs)
        now = self._clock.now()
        changes = [self._cancel_of(run, jobs.get(run.job_id or ""), now, reason) for run in runs]
        written = await self._settling.write(changes, jobs, now)
        asked = [change.run for change, done in zip(changes, written, strict=True) if done and change.state in CLAIMED]
        for run in asked:
            self._cancel_asked(run)
        if asked:
            self._signal.publish(CANCEL)
        return [run for run, done in zip(runs, written, strict=True) if not done]

    def _cancel_of(self, run: Run, job: Job | None, now: Instant, reason: str) -> RunChange:
        after = cancel(run, retention_of(run, job), now, reason)
        return RunChange(after, run.token, run.state, records=told_cancel(run, after, reason, now))


def _has_keys(run: Run, seen: Seen) -> bool:
    """Whether the keys of the job, as it is now, can be made for the payload of this run."""
    try:
        owed_run(seen.job, seen.now, seen.now, Cause.MANUAL, run.payload)
    except InvalidRequest:
        return False
    return True


def _has_error(run: Run, selection: Selection) -> bool:
    text = selection.error_contains
    if text is None or run.error is None:
        return text is None
    return text.casefold() in run.error.casefold() if selection.any_case else text in run.error


def _key(run: Run) -> str:
    """The unique key of the run that repeats this one."""
    return retry_key(run.id)


def _told(run: Run) -> str:
    """The name of a retry of this run in the audit."""
    return f"run.retry run/{run.id}"


def _told_again(again: Run) -> str:
    """The same, from the run that repeats it."""
    return f"run.retry run/{(again.unique_key or '').removeprefix(RETRY_KEY)}"


def _keyed(again: Run, run: Run) -> Run:
    return replace(again, unique_key=_key(run))


__all__ = ["CANCELLED", "FORBIDDEN", "Batch", "Bulk", "Selection"]
