"""Shared by all tests: which of them are slow, which are proofs, and how much a random search tries.

Each test has one try. What can't be certain on a busy machine, since real processes race real time in it, is a proof:
`make test` leaves it out, `make proof` runs it, and docs/architecture/proof.md lists it.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.searching import use_profile

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a shell, we ignore Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROOF_FOLDERS = {"proof"}
SLOW_FOLDERS = {"blackbox", "proof", "buses", "remote"}
SLOW_MODULES = {
    "test_command_runs.py", "test_costly.py", "test_cron_oracles.py", "test_dead.py", "test_expensive_rules.py",
    "test_generated_client.py", "test_processes.py", "test_real_http.py", "test_shell_commands.py",
    "test_simulate.py", "test_sqlite.py", "test_stopping.py", "test_worker.py", "test_worker_app.py",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Search less where the slow tests are left out."""
    use_profile("quick" if config.option.markexpr == "not slow" else "whole")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder and module."""
    for item in items:
        path = Path(item.path)
        if path.name in SLOW_MODULES or SLOW_FOLDERS & set(path.parts):
            item.add_marker(pytest.mark.slow)
        if PROOF_FOLDERS & set(path.parts):
            item.add_marker(pytest.mark.proof)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not look at it after each module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What a module leaves open is charged to it, and not to the test that runs when the garbage is collected."""
    yield
    gc.collect()
