"""The health of jobs: what `ports.Store` says of it, as functions on a session. It is counted by what finishes runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horarium.model import NO_HEALTH, Health
from horarium.stores.encoding import decode_health, health_row
from horarium.stores.postgres.rows import storable
from horarium.stores.postgres.session import Session


async def job_health(session: Session, job_ids: Sequence[str]) -> dict[str, Health]:
    rows = await session.rows("job_health", session.namespace_id, storable(job_ids))
    return dict.fromkeys(job_ids, NO_HEALTH) | _by_job(rows)


async def failing_jobs(session: Session, limit: int) -> dict[str, Health]:
    return _by_job(await session.rows("failing_jobs", session.namespace_id, limit))


async def add_health(session: Session, health: Mapping[str, Health]) -> None:
    known = {job_id: each for job_id, each in health.items() if each != NO_HEALTH}
    if known:
        columns = map(list, zip(*map(health_row, known.values()), strict=True))
        await session.change("add_health", session.namespace_id, list(known), *columns)


def _by_job(rows: Sequence[Any]) -> dict[str, Health]:
    return {row[0]: decode_health(tuple(row)[1:]) for row in rows}
