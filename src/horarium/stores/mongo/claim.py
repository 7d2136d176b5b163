"""The claim: which runs are next, exactly, also while other nodes claim at the same time.

Candidates are read without a lock. If nothing can hold any of them back, one command takes those that are still as
they were read. Every write leaves a mark of its own, so a run with the same mark is unchanged, and the claimed runs
need not be read back: two round trips. Only if some were lost to another claimer does a query tell which, and the claim
looks again.

If some may be held back (a concurrency key, the order of a job), these are decided in a transaction, on one snapshot of
claimed runs. For each key and each job of which it takes a run it also writes the gate: a document whose only purpose
is that two transactions that write it can't both succeed. So no two claimers decide about one key on the same snapshot,
and claimers of different keys don't wait for each other. A claimer that dies leaves its gates shut until a node that is
blocked ends its transaction; where the server forbids that, the others take the runs behind other gates. Settling a run
only frees places; a snapshot that does not contain that yet holds back too much, never too little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, Level, Run, State
from horarium.ports import Claimed, deadline_of, lease_end
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import new_mark, update_one
from horarium.stores.mongo.decision import Decision
from horarium.stores.mongo.jobs import jobs_by_id
from horarium.stores.mongo.rows import load_runs
from horarium.stores.mongo.runs import Statement, by_key, write
from horarium.stores.mongo.session import Contended, Document, Session, Unwritten

LOOKS_MAX = 20
"""How often one claim looks for candidates before it returns what it has."""

PASSING: Document = {"$inc": {"claims": 1}, "$currentDate": {"used_at": True}}


async def claim_runs(
    session: Session, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
) -> Claimed:
    if not queues:
        return Claimed()
    claim = _Claim(session, queues, limit, worker, now, until, steady)
    runs = await claim.runs()
    return Claimed(tuple(runs), await claim.jobs_of(runs), await claim.next_due_at())


async def first_due(session: Session, levels: Sequence[Level]) -> list[Instant | None]:
    return list(await asyncio.gather(*(session.first(queries.first_due(session, *level)) for level in levels)))


class _Claim:
    """One claim. `_exhausted`: nothing that could be taken is left, as far as it was looked at. `_hindered`: behind
    some gates it could not be looked."""

    def __init__(
        self,
        session: Session,
        queues: Sequence[str],
        limit: int,
        worker: str,
        now: Instant,
        until: Instant,
        steady: Instant,
    ) -> None:
        self._session, self._limit, self._worker, self._now, self._steady = session, limit, worker, now, steady
        self._queues, self._until = queues, until
        self._found = queries.claimable(session, queues, now, until)
        self._gates: list[str] = []
        self._jobs: dict[str, Job] = {}
        self._exhausted = False
        self._hindered = False

    async def runs(self) -> list[Run]:
        """Take runs until the limit is reached or none is left."""
        taken: list[Run] = []
        for _ in range(LOOKS_MAX):
            wanted = self._limit - len(taken)
            if wanted <= 0:
                break
            candidates = await self._session.find(queries.claim_ready(self._found), wanted, fresh=True)
            if any(candidate.get("gated") for candidate in candidates):
                candidates, gated, self._exhausted = await self._take_gated(wanted)
                taken += gated
            else:
                self._exhausted = len(candidates) < wanted
            won = await self._take(candidates)
            taken += won
            if self._exhausted and len(won) == len(candidates):
                break
            self._exhausted = False
        return sorted(taken, key=_claim_order)

    async def jobs_of(self, runs: Sequence[Run]) -> dict[str, Job]:
        job_ids = {run.job_id for run in runs if run.job_id is not None}
        await self._learn_jobs(job_ids)
        return {job_id: self._jobs[job_id] for job_id in job_ids if job_id in self._jobs}

    async def next_due_at(self) -> Instant | None:
        """When to look again."""
        if not self._exhausted or self._hindered:
            return self._until
        found: Instant | None = await self._session.first(queries.next_due_at(self._session, self._queues, self._until))
        return found

    async def _take(self, candidates: Sequence[Document]) -> list[Run]:
        """Take those of these runs that are still as they were read, and that nothing can hold back."""
        if not candidates:
            return []
        mark = new_mark()
        change = queries.claim_runs(self._worker, self._now, self._steady, mark)
        statements: list[Statement] = [(where, change) for where in queries.unmoved_runs(candidates)]
        job_ids = {candidate["job_id"] for candidate in candidates if "job_id" in candidate}
        count, _ = await asyncio.gather(write(self._session, statements), self._learn_jobs(job_ids))
        if count < len(candidates):
            candidates = await self._kept(candidates, mark) if count else []
        return [self._claimed(run) for run in load_runs(self._session, candidates)]

    async def _kept(self, candidates: Sequence[Document], mark: Any) -> list[Document]:
        query = queries.marked_runs([by_key(candidate) for candidate in candidates], mark, whole=False)
        ours = {by_key(document) for document in await self._session.find(query, fresh=True)}
        return [candidate for candidate in candidates if by_key(candidate) in ours]

    def _claimed(self, run: Run) -> Run:
        """What the claim has made of a run: the same as `queries.claim_runs`."""
        started_at = max(self._now, run.due_at)
        begins = self._steady + started_at - self._now
        if run.execution_seconds is not None:
            run = replace(run, deadline=deadline_of(run, begins))
        return replace(
            run,
            state=State.RUNNING,
            attempt=run.attempt + 1,
            token=run.token + 1,
            worker=self._worker,
            lease_expires_at=lease_end(run, begins),
            started_at=started_at,
        )

    async def _learn_jobs(self, job_ids: Iterable[str]) -> None:
        self._jobs.update(await jobs_by_id(self._session, sorted(set(job_ids) - self._jobs.keys())))

    # -- gated runs

    async def _take_gated(self, wanted: int) -> tuple[list[Document], list[Run], bool]:
        """Decide which runs are next. Those that may be held back are taken at once; the others are returned, to be
        taken without a transaction, in which every loss to another claimer would undo all of it."""
        try:
            return await self._session.transaction(lambda within: self._decide(wanted, within), gate=True)
        except Contended:
            # A claimer may have died and left a gate shut. Runs that need not pass it go on.
            self._hindered = True
            self._found = queries.beyond_gates(self._found, await self._stuck())
        try:
            return await self._session.transaction(lambda within: self._decide(wanted, within), gate=True)
        except Contended:
            return [], [], False

    async def _decide(self, wanted: int, within: Any) -> tuple[list[Document], list[Run], bool]:
        decision = Decision(self._session, self._found, wanted, within)
        await decision.make()
        gated = [candidate for candidate in decision.taken if candidate.get("gated")]
        self._gates = sorted({gate for candidate in gated for gate in _gates(self._session, candidate)})
        keys = [by_key(candidate) for candidate in decision.taken if not candidate.get("gated")]
        ready = await self._session.find(queries.pending_runs(keys), within=within) if keys else []
        if not gated and self._session.hold is None:
            raise Unwritten((ready, [], decision.exhausted))
        runs = await self._take_within(gated, within) if gated else []
        return ready, runs, decision.exhausted

    async def _stuck(self) -> list[str]:
        """The gates of the last decision that another transaction holds."""
        session, skip = self._session, len(self._session.prefix)

        def passing(gate: str) -> Callable[[Any], Awaitable[object]]:
            return lambda within: session.gates.update_one({"_id": gate}, PASSING, upsert=True, session=within)

        return [gate[skip:] for gate in self._gates if await session.would_conflict(passing(gate))]

    async def _take_within(self, gated: Sequence[Document], within: Any) -> list[Run]:
        session, keys = self._session, [by_key(candidate) for candidate in gated]
        whole = await session.find(queries.pending_runs(keys), within=within)
        if session.hold is None:
            passages = [update_one({"_id": gate}, PASSING, upsert=True) for gate in self._gates]
            await session.gates.bulk_write(passages, session=within)
        change = queries.claim_runs(self._worker, self._now, self._steady, new_mark())
        await session.runs.update_many({"_id": {"$in": keys}}, change, session=session.real(within))
        return [self._claimed(run) for run in load_runs(session, whole)]


def _gates(session: Session, candidate: Document) -> list[str]:
    gates = []
    if candidate.get("concurrency_key") is not None:
        gates.append(session.key("key/" + candidate["concurrency_key"]))
    if candidate.get("serial") and candidate.get("job_id") is not None:
        gates.append(session.key("job/" + candidate["job_id"]))
    return gates


def _claim_order(run: Run) -> tuple[int, Instant, str]:
    return -run.priority, run.due_at, run.id
