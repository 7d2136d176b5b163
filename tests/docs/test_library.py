"""docs/library.md, and pages beside it: their programs run as they stand."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler, SyncScheduler, errors
from horarium.cli.worker import worker
from tests.blackbox.outside import environment
from tests.handlers.conftest import done
from tests.waiting import PATIENCE

PAGES = ("library.md", "results.md", "unique.md")
PAGE = "\n".join((Path(__file__).parents[2] / "docs" / name).read_text() for name in PAGES)
PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WHOLE = [program for program in PROGRAMS if "__main__" in program]
PARTS = [program for program in PROGRAMS if "__main__" not in program]


def test_the_errors_are_drawn_as_they_are() -> None:
    tree = str(errors.__doc__).split("\n\n")[1]
    assert textwrap.dedent(tree) in PAGE


@pytest.mark.slow
@pytest.mark.parametrize("program", WHOLE, ids=["async", "sync"])
def test_a_whole_program_runs_until_a_signal(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import logging; logging.basicConfig(level=logging.INFO)\n" + program)
    running = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    for line in running.stderr:
        if "is running; handlers (100 at one time)" in line:
            break
    running.send_signal(signal.SIGTERM)
    _, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, "Traceback" in error) == (0, False), error
    with SyncScheduler(f"sqlite:///{tmp_path}/horarium.db") as scheduler:
        assert len(scheduler.list_jobs().items) == 1
        assert scheduler.list_runs().items


@pytest.mark.parametrize("program", PARTS)
async def test_a_part_does_as_it_says(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {"__name__": "page"}
    module = type(sys)("page")
    module.__dict__.update(space)
    sys.modules["page"] = module
    exec(compile(program, "library.md", "exec"), module.__dict__)
    scheduler: Scheduler = module.__dict__["scheduler"]
    main: Callable[[], Coroutine[Any, Any, None]] | None = module.__dict__.get("main")
    if main is not None:
        await asyncio.wait_for(main(), PATIENCE)
        promised = re.findall(r"print\(.*?\)  # (.*)", program)
        assert capsys.readouterr().out.splitlines() == promised
    else:
        async with scheduler:
            await scheduler.start()
            for name in ("export", "compress"):
                run = await done(scheduler, name, {"rows": 3})
                assert (run.state, run.progress) == ("completed", b'{"done":2}')
    del sys.modules["page"]


def test_the_commands_have_the_options_that_the_page_names() -> None:
    options = {flag for parameter in worker.params for flag in parameter.opts}
    assert {"--app", "--reload", "--slots", "--grace", "--name"} <= options
