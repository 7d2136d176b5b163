"""Lists of runs: which index holds what a filter asks for, and the walks down it.

Everything else that lists need (how walks become a page, why a page may be short) is in `stores.listing`. Nothing here
is sent: a walk is a value, so that its plan can be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import UNFINISHED as UNFINISHED_STATES
from horarium.model import State
from horarium.ports import RunFilter
from horarium.stores.encoding import STATE_NUMBERS
from horarium.stores.listing import id_bounds
from horarium.stores.mongo.indexes import RUNS, UNFINISHED
from horarium.stores.mongo.session import Document, Grouping, Pipeline, Query, Session

COMPLETED = STATE_NUMBERS[State.COMPLETED]
ANY_UNFINISHED = -1


class RunWalk(Struct, frozen=True):
    """A walk down the ids. `within`: what the index knows; `matches`: what each run is looked at for, of which there is
    no more than a bounded number."""

    index: str
    within: Document
    matches: Document

    def looked_at(self, looks: int) -> Grouping:
        """The first runs, whether they match or not; of those that do not, the id alone."""
        pipeline: Pipeline = [{"$match": self.within}, {"$sort": {"_id": -1}}, {"$limit": looks}]
        if self.matches:
            pipeline.append({"$replaceWith": {"$cond": [{"$and": _holding(self.matches)}, "$$ROOT", {"_id": "$_id"}]}})
        return Grouping(RUNS, self.index, pipeline)

    def below(self, key: str) -> RunWalk:
        """The rest of it, below this run."""
        return replace(self, within={**self.within, "_id": {**self.within["_id"], "$lt": key}})

    def found(self, limit: int, looks: int) -> Grouping:
        """The first runs that match."""
        pipeline: Pipeline = [{"$match": self.within}, {"$sort": {"_id": -1}}]
        if self.matches:
            pipeline += [{"$limit": looks}, {"$match": self.matches}]
        return Grouping(RUNS, self.index, [*pipeline, {"$limit": limit}])

    def ids(self) -> Query:
        """All that may be looked at."""
        return Query(collection=RUNS, index=self.index, where=self.within, sort=[("_id", -1)], fields={"_id": True})


def _holding(matches: Document) -> list[Document]:
    """The same as expressions."""
    holding: list[Document] = []
    for name, value in matches.items():
        bounds = value if isinstance(value, dict) else {"$eq": value}
        holding += ({operator: [f"${name}", {"$literal": bound}]} for operator, bound in bounds.items())
    return holding


def list_runs(session: Session, where: RunFilter, after: str | None) -> list[RunWalk]:
    """Every state has an index of its own, but `completed`: that is most of history, and is filtered from all of the
    namespace, the queue or the job."""
    states: list[int | None] = [None]
    if 0 < len(where.states) < len(STATE_NUMBERS):
        states = [STATE_NUMBERS[state] for state in where.states]
        if where.job is not None and where.states >= UNFINISHED_STATES:
            # One index has all of these, and nothing else.
            states = [ANY_UNFINISHED, *(number for number in states if number is not None and number >= COMPLETED)]
    return [_walk(session, where, after, state) for state in states]


def last_runs(session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> Grouping:
    """The newest runs of each of these jobs (there is one at least): a walk for each, put together by the server."""
    lowest, below = id_bounds(RunFilter(since=since, until=until), None)
    assert lowest is not None
    assert below is not None
    ids = {"$gte": session.key(lowest), "$lt": session.key(below)}
    parts: list[Pipeline] = [
        [{"$match": {"n": session.namespace, "job": job, "_id": ids}}, {"$sort": {"_id": -1}}, {"$limit": limit}]
        for job in jobs
    ]
    rest: Pipeline = [{"$unionWith": {"coll": RUNS, "pipeline": part}} for part in parts[1:]]
    return Grouping(RUNS, "runs_of_name", [*parts[0], *rest])


def _walk(session: Session, where: RunFilter, after: str | None, state: int | None) -> RunWalk:
    lowest, below = id_bounds(where, after)
    ids = {
        "$gte": session.prefix if lowest is None else session.key(lowest),
        "$lt": session.end if below is None else session.key(below),
    }
    matches = _matches(where, state)
    index = _index(where, state)
    within: Document = {"_id": ids}
    if index != "_id_":
        within["n"] = session.namespace
    for name in ("job", "queue", "state"):
        if name in matches and name in INDEXED[index]:
            within[name] = matches.pop(name)
    if index == "runs_unfinished_of_name":
        within.update(UNFINISHED)
    return RunWalk(index, within, matches)


INDEXED: dict[str, tuple[str, ...]] = {
    "_id_": (),
    "runs_of_queue": ("queue",),
    "runs_of_name": ("job",),
    "runs_pending": ("state",),
    "runs_claimed": ("state", "queue"),
    "runs_ended": ("state",),
    "runs_ended_of_queue": ("queue", "state"),
    "runs_ended_of_name": ("job", "state"),
    "runs_unfinished_of_name": ("job",),
}
"""What of a filter the index of a list knows. (Of claimed runs all are read: no more than all workers perform.)"""


def _matches(where: RunFilter, state: int | None) -> Document:
    fire_at = {"$gte": where.since, "$lt": where.until}
    bounds = {operator: instant for operator, instant in fire_at.items() if instant is not None}
    state = None if state == ANY_UNFINISHED else state
    asked = {"job": where.job, "queue": where.queue, "state": state, "fire_at": bounds or None}
    return {name: value for name, value in asked.items() if value is not None}


def _index(where: RunFilter, state: int | None) -> str:
    if state is None or state == COMPLETED:
        if where.job is not None:
            return "runs_of_name"
        return "_id_" if where.queue is None else "runs_of_queue"
    if state < COMPLETED:
        if where.job is not None:
            return "runs_unfinished_of_name"
        return "runs_pending" if state == 0 else "runs_claimed"
    if where.job is not None:
        return "runs_ended_of_name"
    return "runs_ended" if where.queue is None else "runs_ended_of_queue"
