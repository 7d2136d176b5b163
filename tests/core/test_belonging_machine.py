"""Owners, workers and dying nodes in any order: no run of a deleted job, none from a queue that its job has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from horarium.model import Run
from horarium.ports import Store
from horarium.stores.memory import MemoryStore
from horarium.testing.contract.belonging import run_belonging_machine


async def opened() -> Store:
    return MemoryStore()


@pytest.mark.slow
def test_runs_follow_their_jobs_in_any_order_of_things() -> None:
    run_belonging_machine(opened, 40, 25)


async def ignored(reconciler: Any, runs: Sequence[Run], *more: Any, **how: Any) -> None:
    """Nobody looks at what was put back."""


def all_wanted(runs: Sequence[Run], jobs: Any) -> list[Run]:
    """Everything is handed out."""
    return []


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("horarium.operations.settling.claiming._unwanted", all_wanted),
        ("horarium.operations.settling.reconciling.Reconciler._look", ignored),
    ],
)
def test_a_node_that_looks_away_is_caught(monkeypatch: pytest.MonkeyPatch, what: str, instead: Any) -> None:
    monkeypatch.setattr(what, instead)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run_belonging_machine(opened, 40, 25, shorten=False)
