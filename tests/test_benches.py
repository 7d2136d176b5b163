"""The benchmarks run: each is started with sizes that take no time. What they measure here means nothing."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

import pytest

from bench import __main__ as table
from bench import callbacks, end_to_end, fairness, http_delivery, lists, storm

pytestmark = pytest.mark.slow

BENCH = Path(storm.__file__).parent
OTHERS = {"libcurl", "worker"}
"""One needs a package of its own, one is the program of a process."""


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("*.py") if path.stem not in OTHERS))
def test_each_benchmark_can_be_loaded(name: str) -> None:
    assert import_module(f"bench.{name}") is not None


def test_a_storm_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "WARM_UP_SECONDS", 0.05)
    assert storm.main(["--clients", "2", "--seconds", "0.1", "--waiting", "10", "sqlite"]) == 0


def test_runs_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end_to_end.main(["--runs", "100", "--rounds", "1", "--directory", str(tmp_path)])
    assert "horarium run" in capsys.readouterr().out


def test_fairness_keys_take_turns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    claims, off = asyncio.run(fairness.promises(f"sqlite:///{tmp_path}/x.db", 2_000))
    assert claims <= fairness.BAR_BATCHES
    assert off <= fairness.BAR_SHARES
    fairness.main(["sqlite", "--runs", "200", "--rounds", "1"])
    assert "a late key is done in claim" in capsys.readouterr().out


def test_lists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "TIMES", 1)
    lists.main(["sqlite", "--runs", "1000"])
    assert "due_jobs beside state=running" in capsys.readouterr().out


def test_callbacks_of_every_scene_are_settled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "LEAD_SECONDS", 0.2)
    shares = callbacks.main(["--runs", "20", "--rounds", "1"])
    assert sorted(shares) == ["many", "one", "tls"]
    assert capsys.readouterr().out.count("per CPU second") == 3


def test_requests_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    http_delivery.main(["--requests", "10", "--rounds", "1"])
    assert "share" in capsys.readouterr().out


def test_the_table_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    table.main(["sqlite", "--runs", "100", "--rounds", "1", "--no-peers"])
    assert {"SQLite", "huey", "horarium"} <= set(capsys.readouterr().out.split())
