"""The health of jobs: what `ports.Store` says of it, as functions on a session inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import apsw

from horarium.model import NO_HEALTH, Health, RunChange
from horarium.model.health import health_after
from horarium.stores.encoding import decode_health, decode_id, encode_id, health_row
from horarium.stores.sqlite.session import Row, Session


def count_ends(session: Session, written: Iterable[RunChange]) -> None:
    """What these changes, which were written, end."""
    if health := health_after(written):
        session.change_rows("count_ends", _rows(health), session.namespace_id)


def job_health(session: Session, job_ids: Sequence[str]) -> dict[str, Health]:
    ids = apsw.carray(tuple(map(encode_id, job_ids)))
    return dict.fromkeys(job_ids, NO_HEALTH) | _by_job(session.rows("job_health", session.namespace_id, ids))


def failing_jobs(session: Session, limit: int) -> dict[str, Health]:
    return _by_job(session.rows("failing_jobs", session.namespace_id, limit))


def add_health(session: Session, health: Mapping[str, Health]) -> None:
    known = {job_id: each for job_id, each in health.items() if each != NO_HEALTH}
    session.change_rows("add_health", _rows(known), session.namespace_id)


def _rows(health: Mapping[str, Health]) -> list[Row]:
    return [(encode_id(job_id), *health_row(each)) for job_id, each in health.items()]


def _by_job(rows: Iterable[Row]) -> dict[str, Health]:
    return {decode_id(row[0]): decode_health(row[1:]) for row in rows}
