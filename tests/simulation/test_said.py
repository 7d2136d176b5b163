"""Worlds in which the work speaks: logs hold what was said, in order, once, within their bounds; and mutants of what
writes them are found."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.clock import SECOND
from horarium.model import Run
from horarium.model.records import instant_key
from horarium.operations.runs.logs import BOOKS, Logs
from horarium.services.performing.log_writer import LogWriter
from horarium.testing.simulate import Violation, simulate
from horarium.testing.simulate.said import Said
from horarium.testing.simulate.workload import SHARES

pytestmark = pytest.mark.slow

SEEDS = range(5)
SEEDS_FOR_A_MUTANT = range(60)


@pytest.fixture(autouse=True)
def speaking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "says": 0.7})


def test_worlds_that_speak_hold_every_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, read = Said.check, 0

    async def counted(self: Said, logs: Logs, runs: dict[str, Run]) -> int:
        nonlocal read
        lines = await honest(self, logs, runs)
        read += lines
        return lines

    monkeypatch.setattr(Said, "check", counted)
    for seed in SEEDS:
        simulate(seed)
    assert read > 500 * len(SEEDS)


def found() -> str:
    """What is first found."""
    for seed in SEEDS_FOR_A_MUTANT:
        try:
            simulate(seed)
        except Violation as violation:
            return str(violation).partition("\n")[0]
    return "nothing"


def test_lines_that_are_forgotten_in_an_outage_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogWriter, "_put_back", lambda self, waiting, entries: None)
    said = found()
    assert any(what in said for what in ("lines are missing", "is not in its log"))


def test_lines_that_are_written_again_after_an_outage_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Logs, run: Run, lines: Any) -> bool:
        return False

    monkeypatch.setattr(Logs, "_were_written", never)
    said = found()
    assert "there twice" in said or "are said to be left out" in said


def test_an_end_that_does_not_wait_for_the_last_lines_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: LogWriter, run: Run) -> None:
        return None

    monkeypatch.setattr(LogWriter, "written", at_once)
    assert "that it said is not in its log" in found()


def test_a_log_that_is_shared_by_runs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = "horarium.operations.runs.logs._name"
    monkeypatch.setattr(renamed, lambda at, run_id: BOOKS + instant_key(at // SECOND * SECOND))
    said = found()
    assert "holds a line of run" in said or "is not in its log" in said


def test_a_log_without_bounds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.rules.logbook.CHUNKS_MAX", 1_000)
    monkeypatch.setattr("horarium.rules.backlog.LOG_BYTES_MAX", 10**9)
    assert "bytes" in found()
