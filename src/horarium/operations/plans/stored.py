"""Plans, read from the store by their ids."""

from __future__ import annotations

import msgspec

from horarium.clock import Instant
from horarium.errors import InvalidRequest, NotFound
from horarium.model.plans import PLAN, Step, StoredPlan, opened
from horarium.model.records import Record
from horarium.ports import Store

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
    raise NotFound(f"there is no plan {name!r} with this key, or it has expired; make it again")
