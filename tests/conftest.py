"""Shared by all tests: what starts servers or waits for real time is slow, wherever it stands.

Tests that race real processes against real clocks on a shared machine get a second try, and the summary tells of it. A
failure of the product shows each time; everything else has one try.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a shell, we ignore Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_FOLDERS = {"blackbox", "proof", "buses", "remote"}
SECOND_TRY_FOLDERS = {"blackbox", "examples", "remote"}
SECOND_TRY_MODULES = {"test_real_http.py", "test_worker.py", "test_processes.py", "test_command_runs.py"}
SLOW_MODULES = {
    "test_command_runs.py", "test_cron_oracles.py", "test_processes.py", "test_real_http.py", "test_shell_commands.py",
    "test_simulate.py", "test_worker.py", "test_worker_app.py", "test_stopping.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave them out of `make quick`."""
    for item in items:
        path = Path(item.path)
        if path.name in SLOW_MODULES or SLOW_FOLDERS & set(path.parts):
            item.add_marker(pytest.mark.slow)
        if path.name in SECOND_TRY_MODULES or "faults" in path.name or SECOND_TRY_FOLDERS & set(path.parts):
            item.add_marker(pytest.mark.flaky(reruns=1))
