"""Keys: shown once, found by their hash, gone within seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.access.audit import AuditFilter, Origin, entry, page
from horarium.access.keys import PREFIX, Key, Keys, digest_of, new_token
from horarium.access.remembered import REMEMBERED_MAX, REMEMBERED_SECONDS
from horarium.access.roles import LOCAL, SCOPES, Role, Scope
from horarium.access.sessions import Sessions
from horarium.clock import DAY, MINUTE
from horarium.errors import AlreadyExists, InvalidRequest, NotFound
from horarium.model.records import Record, RecordFilter
from horarium.ports import Page
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.faults import Fault, FaultyStore
from horarium.testing.values import NOW

TOKEN = new_token(bytes(range(32)))


class Node:
    """Keys as one node sees them, and how often it asked the store."""

    def __init__(self, database: MemoryDatabase, clock: ManualClock) -> None:
        self.calls: list[str] = []
        self.store = FaultyStore(MemoryStore(database=database), self._note)
        self.failing = ""
        self.keys = Keys(self.store, clock)

    def _note(self, call: str) -> Fault | None:
        self.calls.append(call)
        return Fault.BEFORE if call == self.failing else None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def nodes(clock: ManualClock) -> list[Node]:
    database = MemoryDatabase()
    return [Node(database, clock) for _ in range(2)]


def a_key(name: str = "ci", token: str = TOKEN, **changes: Any) -> Key:
    fields = {"roles": (Role.VIEWER,), "created_at": NOW, **changes}
    return Key(name=name, digest=digest_of(token), **fields)


async def test_a_key_opens_what_its_roles_say_on_every_node(nodes: list[Node]) -> None:
    await nodes[0].keys.add(a_key(roles=(Role.WORKER, Role.VIEWER), queues=("images",)))
    for node in nodes:
        found = await node.keys.find(TOKEN)
        assert found is not None
        assert (found.subject, found.kind, found.roles) == ("ci", "key", (Role.VIEWER, Role.WORKER))
        assert found.scopes == SCOPES[Role.VIEWER] | {Scope.WORK}
        assert found.may_serve("images")
        assert not found.may_serve("other")


async def test_only_the_hash_is_kept(nodes: list[Node]) -> None:
    await nodes[0].keys.add(a_key())
    (record,) = (await nodes[0].store.list_records(RecordFilter(), None, 9)).items
    assert TOKEN not in str(record)
    assert TOKEN.removeprefix("hk_") not in str(record)
    assert len(TOKEN) == 46


@pytest.mark.parametrize("token", ["", "hk_", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), f"{PREFIX}ci", digest_of(TOKEN)])
async def test_nothing_else_is_a_key(nodes: list[Node], token: str) -> None:
    await nodes[0].keys.add(a_key())
    assert await nodes[0].keys.find(token) is None


async def test_a_key_that_was_revoked_ends_within_seconds_everywhere(nodes: list[Node], clock: ManualClock) -> None:
    here, there = nodes
    await here.keys.add(a_key())
    assert await there.keys.find(TOKEN) is not None
    assert (await here.keys.revoke("ci")).name == "ci"
    assert await here.keys.find(TOKEN) is None
    clock.advance(REMEMBERED_SECONDS)
    assert REMEMBERED_SECONDS < 5
    assert await there.keys.find(TOKEN) is None
    with pytest.raises(NotFound):
        await here.keys.revoke("ci")


async def test_a_use_that_is_noted_does_not_bring_a_revoked_key_back(nodes: list[Node], clock: ManualClock) -> None:
    here, there = nodes
    await here.keys.add(a_key())
    assert await there.keys.find(TOKEN) is not None
    await here.keys.revoke("ci")
    clock.advance(3 * MINUTE // 1_000_000)
    assert await there.keys.find(TOKEN) is None
    assert (await here.keys.page(None, 9)).items == ()


async def test_a_key_ends_at_its_very_instant(nodes: list[Node], clock: ManualClock) -> None:
    await nodes[0].keys.add(a_key(expires_at=NOW + 2_000_000))
    assert await nodes[0].keys.find(TOKEN) is not None
    clock.advance(1.999_999)
    assert await nodes[0].keys.find(TOKEN) is not None
    clock.advance(0.000_001)
    assert await nodes[0].keys.find(TOKEN) is None


async def test_its_last_use_is_noted_once_a_minute(nodes: list[Node], clock: ManualClock) -> None:
    (node, _) = nodes
    await node.keys.add(a_key())
    for _ in range(3):
        assert await node.keys.find(TOKEN) is not None
        clock.advance(1)
    assert node.calls.count("put_records") == 2
    (key,) = (await node.keys.page(None, 9)).items
    assert key.last_used_at == NOW - NOW % MINUTE
    clock.advance(60)
    assert await node.keys.find(TOKEN) is not None
    (key,) = (await node.keys.page(None, 9)).items
    assert key.last_used_at == NOW - NOW % MINUTE + MINUTE


async def test_a_store_that_takes_no_writes_keeps_nobody_out(nodes: list[Node]) -> None:
    await nodes[0].keys.add(a_key())
    nodes[1].failing = "put_records"
    assert await nodes[1].keys.find(TOKEN) is not None


async def test_what_was_asked_is_remembered_within_bounds(nodes: list[Node]) -> None:
    (node, _) = nodes
    wrong = new_token(bytes(32))
    for _ in range(5):
        assert await node.keys.find(wrong) is None
    assert node.calls == ["list_records"]
    for number in range(REMEMBERED_MAX + 10):
        await node.keys.find(f"hk_{number}")
    assert len(node.keys._remembered._kept) == REMEMBERED_MAX


class Slow(MemoryStore):
    """The first list of records that is asked for is as old as the question, and comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.go_on = asyncio.Event(), asyncio.Event()

    async def list_records(self, *given: Any) -> Page[Record]:
        found = await super().list_records(*given)
        if not self.read.is_set():
            self.read.set()
            await self.go_on.wait()
        return found


async def test_what_was_read_before_its_end_is_not_remembered_after_it(clock: ManualClock) -> None:
    store = Slow()
    keys = Keys(store, clock)
    await keys.add(a_key(last_used_at=NOW))
    asking = asyncio.ensure_future(keys.find(TOKEN))
    await store.read.wait()
    await keys.revoke("ci")
    store.go_on.set()
    await asking
    assert await keys.find(TOKEN) is None

    store = Slow()
    sessions = Sessions(store, clock, bytes)
    token = await sessions.begin("server-key", "digest")
    asked = asyncio.ensure_future(sessions.find(token))
    await store.read.wait()
    await sessions.end(token)
    store.go_on.set()
    await asked
    assert await sessions.find(token) is None


async def test_a_name_is_given_once_and_again_after_it_was_revoked(nodes: list[Node]) -> None:
    (node, _) = nodes
    await node.keys.add(a_key())
    await node.keys.add(a_key())  # the same key once more: an answer was lost
    with pytest.raises(AlreadyExists):
        await node.keys.add(a_key(token=new_token(bytes(32))))
    await node.keys.revoke("ci")
    await node.keys.add(a_key(token=new_token(bytes(32))))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"), ({"name": "a/b"}, "name"), ({"name": "x" * 201}, "name"), ({"roles": ()}, "roles"),
        ({"queues": ()}, "queues"), ({"roles": (Role.ADMIN,), "queues": ("a",)}, "queues"),
        ({"roles": (Role.ADMIN, Role.VIEWER), "queues": ("a",)}, "queues"),
        *(({"name": name}, "name") for name in ("local", "api-key", "endpoint", "unknown", "door:simple-scheduler")),
        ({"expires_at": NOW}, "expires_at"),
        ({"roles": (Role.WORKER,), "queues": tuple(map(str, range(101)))}, "queues"),
    ],
)  # fmt: skip
async def test_a_wrong_key_is_refused(nodes: list[Node], changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await nodes[0].keys.add(a_key(**{"name": "ci", **changes}))
    assert refused.value.field == field
    assert (await nodes[0].keys.page(None, 9)).items == ()


async def test_keys_are_listed_by_name_in_pages(nodes: list[Node]) -> None:
    for number in range(5):
        await nodes[0].keys.add(a_key(f"key-{number}", new_token(bytes([number] * 32))))
    first = await nodes[0].keys.page(None, 3)
    rest = await nodes[0].keys.page(first.next_after, 3)
    assert [key.name for key in (*first.items, *rest.items)] == [f"key-{number}" for number in range(5)]
    assert rest.next_after is None


async def test_an_audited_change_of_a_key_and_its_entry_are_one(nodes: list[Node]) -> None:
    store, keys = nodes[0].store, nodes[0].keys
    origin = Origin(principal=LOCAL, request_id="r-1", address="127.0.0.1")
    await keys.add(a_key(), [entry(origin, "key.create", "key/ci", NOW, after={"roles": ["viewer"]})])
    with pytest.raises(AlreadyExists):
        await keys.add(a_key(token=new_token(bytes(32))), [entry(origin, "key.create", "key/ci", NOW + 1)])
    await keys.revoke("ci", [entry(origin, "key.revoke", "key/ci", NOW + DAY)])
    with pytest.raises(NotFound):
        await keys.revoke("ci", [entry(origin, "key.revoke", "key/ci", NOW + DAY + 1)])
    entries = (await page(store, AuditFilter(object="key/ci"), None, 9)).items
    assert [(line.action, line.at, line.after) for line in entries] == [
        ("key.revoke", NOW + DAY, None),
        ("key.create", NOW, {"roles": ["viewer"]}),
    ]
