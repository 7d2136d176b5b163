"""The library by itself: what it imports, and what the command says where only the library is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.blackbox.outside import environment

pytestmark = pytest.mark.slow

LIBRARY = {"aiohappyeyeballs", "apsw", "horarium", "httptools", "idna", "msgspec", "prometheus_client"}
"""What is installed with it. (tzdata is data.)"""
TAKEN_IF_THERE = {"typing_extensions"}
"""By msgspec."""
STARTED = """
import asyncio, sys
before = set(sys.modules)
from horarium import Scheduler, every
scheduler = Scheduler("memory://", handler_concurrency=4)
@scheduler.job(every("1h"))
async def hourly(run): ...
async def main():
    async with scheduler:
        await scheduler.start()
        await scheduler.enqueue("hourly")
asyncio.run(main())
import horarium.testing.travelling, horarium.client
print(*{name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
"""
MADE = """
import sys
from horarium import Scheduler, cron
scheduler = Scheduler("postgresql://localhost/x", handler_concurrency=4)
@scheduler.job(cron("0 3 * * *"))
async def nightly(run, day: int = 1): ...
print(*sys.modules)
"""
LATER = (
    "horarium.node", "horarium.operations", "horarium.services", "horarium.triggers.phrase", "prometheus_client",
    "email", "http", "multiprocessing.connection", "importlib.metadata",
)  # fmt: skip
"""What a program imports once it opens its scheduler, or when it uses it."""
AT_ONCE = {
    "horarium.node", "horarium.node.backends", "horarium.node.options", "horarium.operations",
    "horarium.operations.bounds", "horarium.operations.bounds.listing", "horarium.operations.writing",
    "horarium.operations.writing.auditing", "horarium.services", "horarium.services.metrics",
    "horarium.services.metrics.ends", "horarium.services.metrics.job_meters", "horarium.triggers.phrase_calendars",
}  # fmt: skip
"""Those of them that it needs to define jobs and handlers."""
IMPORTED = "import sys; from horarium import Scheduler; print(*sys.modules)"
DEFINING = (
    "horarium.wire.definitions", "horarium.wire.views", "horarium.rules.planning", "horarium.rules.settling",
    "horarium.triggers.compose", "horarium.triggers.cron_trigger", "horarium.triggers.rrule_trigger",
)  # fmt: skip
"""What a program imports once it defines a job, or shows one."""
MODULES_MAX = 115
"""Of ours: each costs about 0.3 ms, and the whole import has 50 ms."""
BARE = "import sys; import horarium; print(*sys.modules)"
WITHOUT = "import sys; sys.modules['click'] = None; from horarium.__main__ import main; main()"


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )


def test_a_program_needs_nothing_of_the_server() -> None:
    done = python(STARTED)
    assert done.returncode == 0, done.stderr
    others = {name for name in done.stdout.split() if not name.startswith("_") and "cython" not in name.lower()}
    assert others <= LIBRARY | TAKEN_IF_THERE


def test_the_package_itself_imports_nothing() -> None:
    assert not {"asyncio", "msgspec", "horarium.library"} & set(python(BARE).stdout.split())


def test_the_scheduler_is_imported_with_few_modules() -> None:
    imported = set(python(IMPORTED).stdout.split())
    assert "horarium.library.scheduler" in imported
    assert not imported & set(DEFINING)
    assert len({name for name in imported if name.startswith("horarium")}) <= MODULES_MAX


def test_a_program_that_defines_its_jobs_imports_no_node() -> None:
    done = python(MADE)
    assert done.returncode == 0, done.stderr
    assert {name for name in done.stdout.split() if name.startswith(LATER)} == AT_ONCE


def test_the_command_says_in_one_line_what_is_missing() -> None:
    done = python(WITHOUT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "horarium: the command needs click, which is not installed; pip install 'horarium[server]'\n"
