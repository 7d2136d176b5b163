"""Plans, read from the store by their ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from horarium.access.acting import bound_caller
from horarium.clock import Instant
from horarium.errors import CallerError, InvalidRequest, NotFound
from horarium.model.plans import PLAN, Step, StoredPlan, opened
from horarium.model.records import Record, RecordFilter
from horarium.operations.bounds.reaching import may_reach_definition
from horarium.operations.writing.keeping import page_under
from horarium.ports import Page, Store
from horarium.wire.definitions import JobDefinition

decode_plan = msgspec.json.Decoder(StoredPlan).decode


async def read_plan(store: Store, plan_id: str, now: Instant) -> tuple[Record, tuple[Step, ...] | None]:
    """The plan as it is stored, and its steps; None: all of them have been made. Raises NotFound, InvalidRequest."""
    name, _, key = plan_id.rpartition("-")
    (record,) = await store.get_records([PLAN + name])
    if record is not None:
        plan = decode_plan(record.body)
        if plan.wrong:
            raise InvalidRequest(f"the plan has invalid definitions ({plan.wrong}); correct them, make it again")
        steps = opened(plan.sealed, key)
        if plan.expires_at > now and (steps is not None or not plan.sealed):
            return record, steps
    raise _no_plan(name)


class Listed(Struct, frozen=True):
    """A plan in a list. `ref`: the first half of its id, which opens nothing. `changes`: how many by action."""

    ref: str
    by: str
    changes: dict[str, int]
    applied: bool
    expires_at: Instant


async def list_plans(store: Store, after: str | None, limit: int, now: Instant) -> Page[Listed]:
    """Plans, the newest first, without what they change. A bound caller sees its own."""
    page = await page_under(store, RecordFilter(PLAN, descending=True), PLAN, after, limit)
    caller, found = bound_caller(), list[Listed]()
    for ref, record in page.items:
        plan = decode_plan(record.body)
        if plan.expires_at > now and (caller is None or plan.by == caller.name):
            found.append(Listed(ref, plan.by, plan.counts, plan.applied, plan.expires_at))
    return Page(tuple(found), page.next_after)


async def require_theirs(
    store: Store, plan_id: str, jobs: Sequence[JobDefinition | CallerError], steps: Sequence[Step], jobs_alone: bool
) -> None:
    """Raises NotFound for a bound reader where the plan is about what it may not see. `jobs_alone`: it is about jobs,
    and those that are to be deleted can be seen."""
    caller = bound_caller()
    if caller is None:
        return
    theirs = jobs_alone and all(
        not isinstance(each, CallerError) and may_reach_definition(caller, each) for each in jobs
    )
    known = [step.name for step in steps if step.before is not None]
    if not theirs or (known and None in await store.get_jobs(known)):
        raise _no_plan(plan_id.rpartition("-")[0])


def _no_plan(name: str) -> NotFound:
    return NotFound(f"there is no plan {name!r} with this key, or it has expired; make it again")
