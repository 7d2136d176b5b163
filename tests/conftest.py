"""Shared by all tests: which of them are slow, which are proofs, and how much a random search tries.

Each test has one try. A proof takes long, or can't be certain on a busy machine, since real processes race real time in
it: `make test` leaves it out, `make proof` runs it, and docs/architecture/proof.md lists it.
"""

from __future__ import annotations

import gc
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.searching import use_profile

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a shell, we ignore Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
PROOF_FOLDERS = {"proof"}
SLOW_FOLDERS = {
    "blackbox", "buses", "deploy", "doors", "examples", "notify", "proof", "remote", "server",
}  # fmt: skip
SLOW_MODULE = ("\npytestmark = pytest.mark.slow\n", "\npytestmark = [pytest.mark.slow, ")
QUICK = "not slow"
GARBAGE_LOOKED_FOR_AFTER = (50_000, 20, 20)
"""Objects more than before: Python's own 700 is made for small heaps. Each module's garbage is collected at its end."""


def pytest_configure(config: pytest.Config) -> None:
    """Search less where the slow tests are left out."""
    use_profile("quick" if config.option.markexpr == QUICK else "whole")


_start = subprocess.Popen.__init__


def _refuse(self: Any, *args: Any, **more: Any) -> None:
    raise AssertionError("a test that starts a process is slow: mark it so")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Quick tests start no process, whichever tests run beside them."""
    may_start = any(item.get_closest_marker(mark) for mark in ("slow", "proof"))
    subprocess.Popen.__init__ = _start if may_start else _refuse  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Servers that many tests share are stopped after any of them."""
    subprocess.Popen.__init__ = _start  # type: ignore[method-assign]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules in which all is slow are not even imported where slow tests are left out, nor is what they share."""
    if config.option.markexpr != QUICK or not collection_path.is_relative_to(TESTS):
        return None
    if _in_slow_folder(collection_path):
        return True
    return True if collection_path.suffix == ".py" and _is_slow_module(collection_path.read_text()) else None


def _is_slow_module(text: str) -> bool:
    return any(mark in text for mark in SLOW_MODULE)


def _in_slow_folder(path: Path) -> bool:
    return not SLOW_FOLDERS.isdisjoint(_folders(path))


@cache
def _folders(path: Path) -> tuple[str, ...]:
    """Below `tests`: what a folder above is called says nothing."""
    return path.relative_to(TESTS).parts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder. The longest tests are those of the site: they begin first, that none of them runs alone at the
    end."""
    items.sort(key=lambda item: "site" not in _folders(item.path))
    for item in items:
        if _in_slow_folder(item.path):
            item.add_marker(pytest.mark.slow)
        if not PROOF_FOLDERS.isdisjoint(_folders(item.path)):
            item.add_marker(pytest.mark.proof)


def pytest_collectstart() -> None:
    """Of what is imported and collected nothing is garbage: to look for it takes a sixth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not look at it after each module."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_LOOKED_FOR_AFTER)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What a module leaves open is charged to it, and not to the test that runs when the garbage is collected. What
    lives on, caches and servers of the session, is looked at once and no more."""
    yield
    gc.collect()
    gc.freeze()
