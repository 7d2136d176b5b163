"""The health of jobs, read and copied. It is counted by the scripts that settle runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horarium.model import NO_HEALTH, Health, LastRun
from horarium.stores.encoding import STATE_NUMBERS, STATES, decode_text, encode_text
from horarium.stores.redis.loading import Read
from horarium.stores.redis.parts import parts

AT_ONCE = 100
"""Of how many jobs one call reads or writes it: an error may have some kilobytes."""


async def job_health(read: Read, job_ids: Sequence[str]) -> dict[str, Health]:
    found: dict[str, Health] = {}
    for part in parts(job_ids, AT_ONCE):
        found.update(zip(part, map(_health, await read("job_health", *part)), strict=True))
    return found


async def failing_jobs(read: Read, limit: int) -> dict[str, Health]:
    ids, found = await read("failing_jobs", limit)
    return {job_id.decode(): _health(fields) for job_id, fields in zip(ids, found, strict=True)}


async def add_health(write: Read, health: Mapping[str, Health]) -> None:
    for part in parts([job_id for job_id, each in health.items() if each != NO_HEALTH], AT_ONCE):
        await write("add_health", *(value for job_id in part for value in (job_id, *_values(health[job_id]))))


def _values(health: Health) -> list[bytes]:
    last = health.last_run
    assert last is not None
    said = last.id, STATE_NUMBERS[last.state], last.finished_at, encode_text(last.error), health.last_success_at
    known = (*said, health.failures_in_a_row or None, health.failing_since)
    return [b"" if each is None else b"+" + (each if isinstance(each, bytes) else str(each).encode()) for each in known]


def _health(fields: Sequence[Any]) -> Health:
    run_id, state, at, error, success, failures, since = fields
    if run_id is None:
        return NO_HEALTH
    last = LastRun(run_id.decode(), STATES[int(state)], int(at), decode_text(error))
    return Health(last, success and int(success), int(failures or 0), since and int(since))
