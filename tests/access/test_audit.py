"""The audit: who did what to what, when, newest first."""

from __future__ import annotations

import pytest

from horarium.access.audit import VALUE_BYTES_MAX, AuditFilter, Origin, entry, page, prune
from horarium.access.roles import LOCAL, Role, principal
from horarium.clock import HOUR
from horarium.model.records import RecordChange
from horarium.stores.memory import MemoryStore
from horarium.testing.values import NOW

ANN = Origin(principal=principal("ann", "Ann", "oidc", [Role.EDITOR]), request_id="r-1", address="192.0.2.1")
ROOT = Origin(principal=LOCAL, request_id="r-2")


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    lines = [
        entry(ANN, "job.pause", "job/nightly", NOW, before={"paused": False}, after={"paused": True}),
        entry(ROOT, "job.update", "job/nightly", NOW + HOUR),
        entry(ANN, "job.update", "job/other", NOW + 2 * HOUR, outcome="refused"),
    ]
    await store.put_records([RecordChange(line) for line in lines])
    return store


async def actions(store: MemoryStore, **where: object) -> list[str]:
    found = (await page(store, AuditFilter(**where), None, 9)).items  # type: ignore[arg-type]
    return [f"{line.actor} {line.action} {line.object}" for line in found]


async def test_an_entry_tells_who_did_what_and_what_it_was_before(store: MemoryStore) -> None:
    (line,) = (await page(store, AuditFilter(action="job.pause"), None, 9)).items
    assert (line.at, line.actor, line.kind, line.outcome) == (NOW, "ann", "oidc", "done")
    assert (line.before, line.after) == ({"paused": False}, {"paused": True})
    assert (line.request_id, line.address) == ("r-1", "192.0.2.1")


async def test_the_newest_come_first_and_every_filter_must_match(store: MemoryStore) -> None:
    everything = ["ann job.update job/other", "local job.update job/nightly", "ann job.pause job/nightly"]
    assert await actions(store) == everything
    assert await actions(store, actor="ann") == [everything[0], everything[2]]
    assert await actions(store, object="job/nightly") == everything[1:]
    assert await actions(store, object="job/nightly", actor="ann") == everything[2:]
    assert await actions(store, action="job.update", actor="local") == everything[1:2]
    assert await actions(store, actor="an") == []


async def test_a_span_of_time_includes_its_beginning_only(store: MemoryStore) -> None:
    assert await actions(store, since=NOW + HOUR) == ["ann job.update job/other", "local job.update job/nightly"]
    assert await actions(store, since=NOW, until=NOW + HOUR) == ["ann job.pause job/nightly"]
    assert await actions(store, until=NOW) == []


async def test_pages_join(store: MemoryStore) -> None:
    first = await page(store, AuditFilter(), None, 2)
    rest = await page(store, AuditFilter(), first.next_after, 2)
    assert [line.at for line in (*first.items, *rest.items)] == [NOW + 2 * HOUR, NOW + HOUR, NOW]


async def test_what_is_old_is_forgotten(store: MemoryStore) -> None:
    assert await prune(store, NOW + HOUR, 100) == 1
    assert await actions(store) == ["ann job.update job/other", "local job.update job/nightly"]


async def test_a_request_that_is_repeated_is_told_once(store: MemoryStore) -> None:
    again = entry(ANN, "job.pause", "job/nightly", NOW, before={"paused": False}, after={"paused": True})
    assert await store.put_records([RecordChange(again)]) == [False]


async def test_what_is_too_large_is_left_out_and_said_to_be(store: MemoryStore) -> None:
    line = entry(ANN, "job.create", "job/large", NOW, after={"payload": "x" * VALUE_BYTES_MAX})
    assert len(line.body) < 1_000
    await store.put_records([RecordChange(line)])
    (found,) = (await page(store, AuditFilter(object="job/large"), None, 9)).items
    assert "bytes" in found.after["left_out"]
