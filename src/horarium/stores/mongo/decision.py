"""Which runs that may be held back are next: decided in a transaction, on one snapshot of claimed runs.

A claim looks at candidates in claim order, those that may be held back among them. Where a bounded look was not enough,
most of them wait behind gates that are shut; then the gates are walked: of each that may be open only the first run
is read, and what follows it if that is taken. So it does not matter how many wait behind a gate that is shut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from horarium.clock import Instant
from horarium.stores.mongo import queries
from horarium.stores.mongo.session import Document, Session

CHUNK_MIN = 100
"""How many candidates are looked at, at least, before the gates are."""
PROBED_MAX = 8
"""Of how many jobs whose turn it is is asked one by one: of more, together, at the cost of all that waits in them."""

Order = tuple[int, Instant, str]


class Decision:
    """Which candidates may be taken, in claim order, as if each were taken before the next is looked at.

    `found`: the runs that may be taken at all, as `queries.claimable` has it. `exhausted`: nothing more can be
    taken."""

    def __init__(self, session: Session, found: Document, wanted: int, within: Any) -> None:
        self._session, self._found, self._wanted, self._within = session, found, wanted, within
        self._held: Counter[str] = Counter()
        self._turns: dict[str, str | None] = {}
        self._jobs: set[str] = set()
        self._at_work: set[str] | None = None
        self.taken: list[Document] = []
        self.exhausted = False

    async def make(self) -> None:
        session = self._session
        busy = await session.group(queries.busy_keys(session), within=self._within)
        self._held.update({document["_id"]: document["held"] for document in busy})
        size = max(self._wanted, CHUNK_MIN)
        chunk = await session.find(queries.claim_ready(self._found, queries.CANDIDATE), size, within=self._within)
        await self._learn_turns(chunk)
        for candidate in chunk:
            if len(self.taken) == self._wanted:
                return
            if self._admits(candidate):
                self._take(candidate)
        if len(chunk) < size:
            self.exhausted = True
        elif len(self.taken) < self._wanted:
            self._held = Counter({document["_id"]: document["held"] for document in busy})
            self._jobs, self.taken = set(), []
            await self._make_by_gates()

    # -- by gates

    async def _make_by_gates(self) -> None:
        """The same from the start, lane by lane: what nothing holds back is one, and so is each gate that may be open.
        They are merged in claim order; a lane is read no further than it is taken from."""
        numbers = count()
        lanes: list[tuple[Order, int, Document, AsyncIterator[Document]]] = []
        for lane in await self._lanes():
            async for candidate in lane:
                lanes.append((_order(candidate), next(numbers), candidate, lane))
                break
        heapify(lanes)
        while lanes and len(self.taken) < self._wanted:
            _, _, candidate, lane = heappop(lanes)
            if self._admits(candidate):
                self._take(candidate)
            elif candidate.get("gate") is not None:
                continue  # Of a gate that is shut nothing more can be taken.
            async for following in lane:
                heappush(lanes, (_order(following), next(numbers), following, lane))
                break
        self.exhausted = len(self.taken) < self._wanted

    async def _lanes(self) -> list[AsyncIterator[Document]]:
        session, found = self._session, self._found
        ready = await session.find(queries.claim_lane(found), self._wanted, within=self._within)
        lanes = [_each(ready)]
        shut = self._full()
        if at_work := await self._jobs_at_work():
            shut.append({"serial": True, "job_id": {"$in": sorted(at_work)}})
        for queue in found["queue"]["$in"]:
            heads = await session.group(queries.claim_gates(found, queue, shut), within=self._within)
            await self._learn_turns(heads)
            lanes += [self._in_turn(head) if _is_in_order(head) else self._behind(head) for head in heads]
        return lanes

    async def _in_turn(self, head: Document) -> AsyncIterator[Document]:
        """Of a job in order, its first unfinished run, if that is behind this gate and due."""
        if head.get("gate") is None:
            async for candidate in self._behind(head):
                yield candidate
            return
        turn = self._turns[head["job_id"]]
        if turn is None:
            return
        first = head if turn == head["_id"] else await self._turn(head["job_id"])
        if (first.get("gate"), first["queue"]) == (head["gate"], head["queue"]) and self._may_start(first):
            yield first

    async def _behind(self, head: Document) -> AsyncIterator[Document]:
        after: Document | None = None
        if self._may_start(head):
            await self._learn_turns([head])
            yield head
            after = head
        while True:
            query = queries.claim_behind_gate(self._found, head["queue"], head.get("gate"), after)
            chunk = await self._session.find(query, self._wanted, within=self._within)
            await self._learn_turns(chunk)
            for candidate in chunk:
                yield candidate
            if len(chunk) < self._wanted:
                return
            after = chunk[-1]

    def _may_start(self, candidate: Document) -> bool:
        (too_late, *_) = self._found["$nor"]
        due_until, start_by = self._found["due_at"]["$lte"], candidate.get("start_by")
        return bool(candidate["due_at"] <= due_until and (start_by is None or start_by > too_late["start_by"]["$lte"]))

    def _full(self) -> list[Document]:
        """Runs of keys that are full for them."""
        keys: dict[int, list[str]] = {}
        for key, held in self._held.items():
            keys.setdefault(held, []).append(key)
        return [{"concurrency_key": {"$in": some}, "concurrency_max": {"$lte": held}} for held, some in keys.items()]

    # -- whose turn it is

    async def _learn_turns(self, chunk: Sequence[Document]) -> None:
        """For each job of serial runs, which run is next: the first unfinished one, if none is claimed."""
        unknown = {run["job_id"] for run in chunk if _is_in_order(run)} - self._turns.keys()
        if len(unknown) <= PROBED_MAX:
            for job_id in unknown:
                await self._turn(job_id)
            return
        self._turns.update(dict.fromkeys(unknown))
        query = queries.first_unfinished(self._session, unknown)
        for document in await self._session.group(query, within=self._within):
            if document["state"] == 0:
                self._turns[document["_id"]] = document["first"]

    async def _turn(self, job_id: str) -> Document:
        """The first unfinished run of a job that has one; and whether it may begin."""
        (found,) = await self._session.find(queries.turn_of_job(self._session, job_id), 1, within=self._within)
        free = found["state"] == 0 and job_id not in await self._jobs_at_work()
        self._turns[job_id] = str(found["_id"]) if free else None
        return found

    async def _jobs_at_work(self) -> set[str]:
        if self._at_work is None:
            found = await self._session.find(queries.jobs_at_work(self._session), within=self._within)
            self._at_work = {document["job_id"] for document in found}
        return self._at_work

    # -- taking

    def _admits(self, candidate: Document) -> bool:
        key = candidate.get("concurrency_key")
        if _is_in_order(candidate) and not self._has_turn(candidate):
            return False
        return key is None or self._held[key] < candidate["concurrency_max"]

    def _has_turn(self, candidate: Document) -> bool:
        job_id = candidate["job_id"]
        return job_id not in self._jobs and self._turns[job_id] == candidate["_id"]

    def _take(self, candidate: Document) -> None:
        if candidate.get("concurrency_key") is not None:
            self._held[candidate["concurrency_key"]] += 1
        if candidate.get("job_id") is not None:
            self._jobs.add(candidate["job_id"])
        self.taken.append(candidate)


def _is_in_order(candidate: Document) -> bool:
    return bool(candidate.get("serial")) and candidate.get("job_id") is not None


def _order(candidate: Document) -> Order:
    return -candidate["priority"], candidate["due_at"], candidate["_id"]


async def _each(candidates: Sequence[Document]) -> AsyncIterator[Document]:
    for candidate in candidates:
        yield candidate
