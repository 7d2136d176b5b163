"""Finished runs that may be forgotten at the same instant go by id, so that all stores keep the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from horarium.node.backends import make_store
from horarium.testing.contract.base import ids
from horarium.testing.values import NOW, a_finished_run

SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres_url", "serializable_url")]


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    found: str = urls.get(request.param) or request.getfixturevalue(request.param)
    return found


async def test_runs_of_the_same_instant_are_pruned_by_id(url: str) -> None:
    store = make_store(url, "prune-order")
    await store.open()
    runs = [a_finished_run(number, prune_at=NOW) for number in range(6)]
    await store.add_runs([runs[place] for place in (3, 0, 5, 1, 4, 2)])
    assert await store.prune_runs(NOW, 2) == 2
    assert await store.get_runs(ids(runs)) == [None, None, *runs[2:]]
    await store.close()
