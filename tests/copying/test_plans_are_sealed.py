"""A stored plan tells no secrets: not in the rows of a store, not in a copy of it, and not once it was applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler
from horarium.clock import SystemClock
from horarium.errors import NotFound
from horarium.model.plans import PLAN, Step, opened, sealed
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.node.copying import Side, copy

SECRETS = (b"whsec_bm90aGluZyB0byBzZWUgaW4gaGVyZS4u", b"Bearer of-bad-news", b"hook?token=of-the-channel")
DOCUMENTS: dict[str, list[dict[str, Any]]] = {
    "jobs": [
        {
            "name": "report",
            "trigger": {"type": "interval", "every_seconds": 3600},
            "target": {
                "type": "http", "url": "https://example.org/", "signing_secret": SECRETS[0].decode(),
                "headers": {"authorization": SECRETS[1].decode()},
            },
        }
    ],
    "channels": [{"name": "ops", "type": "webhook", "url": f"https://example.org/{SECRETS[2].decode()}"}],
}  # fmt: skip


def told_by(folder: Path) -> list[bytes]:
    """The secrets that can be read in any file of a folder."""
    text = b"".join(file.read_bytes() for file in folder.iterdir())
    return [secret for secret in SECRETS if secret in text]


async def test_rows_and_copies_of_a_plan_tell_no_secret(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    async with Scheduler(f"sqlite:///{source}/a.db") as scheduler:
        plan = await scheduler.plan(DOCUMENTS)
        assert [change["action"] for change in plan["changes"]] == ["create", "create"]
        assert told_by(source) == []
    stores = [make_store(f"sqlite:///{folder}/a.db", "default") for folder in (source, target)]
    for store in stores:
        await store.open()
    sides = [Side(store, SystemClock(), name) for name, store in zip(("source", "target"), stores, strict=True)]
    await copy(sides[0], sides[1], lambda progress: None, force=True)
    for store in stores:
        assert len((await store.list_records(RecordFilter(PLAN), None, 10)).items) == 1
        await store.close()
    assert told_by(target) == []
    async with Scheduler(f"sqlite:///{target}/a.db") as scheduler:
        with pytest.raises(NotFound):
            await scheduler.apply_plan(plan["id"][:-1] + ("0" if plan["id"][-1] != "0" else "1"))
        assert await scheduler.apply_plan(plan["id"]) == 2
        assert await scheduler.apply_plan(plan["id"]) == 0
        (record,) = (await scheduler._runtime.store.list_records(RecordFilter(PLAN), None, 10)).items
        assert b"sealed" not in record.body


def test_steps_are_opened_with_their_key_alone() -> None:
    steps = (Step("job", "a", "{}", None), Step("job", "b", None, "digest"))
    text = sealed(steps, "key")
    assert opened(text, "key") == steps
    assert opened(text, "another") is None
    assert opened(b"", "key") is None
