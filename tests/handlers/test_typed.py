"""Mistakes that a type checker finds before a run does: each planted one, and nothing in the lines without one."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.blackbox.outside import environment

pytestmark = pytest.mark.slow

PROGRAM = """
from dataclasses import dataclass
from datetime import timedelta

from horarium import Run, RunContext, Scheduler, SyncScheduler, every

scheduler = Scheduler("memory://")
plain = SyncScheduler("memory://")


@dataclass
class Report:
    pages: int


@scheduler.handler(retry={"attempts_max": 3}, priority=1, give_up_on=ValueError)
async def send(run: RunContext, to: str, copies: int = 1) -> Report:
    return Report(copies)


@scheduler.handler()
async def alone(to: str) -> None: ...


@scheduler.job(every("5m"))
def tick(run: RunContext) -> int:
    return 1


@plain.handler()
def sync(run: RunContext, to: str) -> None: ...


async def right(run: RunContext) -> None:
    made: Run = await send.enqueue(to="a")
    await send.enqueue("a", copies=2)
    await send.with_options(delay="5s", unique_key="k").enqueue("a", 2)
    await send.with_options(debounce={"key": "k", "seconds": 1}).enqueue("a")
    await send.with_options(unique={"key": "k", "until": "begun"}).enqueue("a")
    await alone.enqueue(to="a")
    await tick.enqueue()
    report: Report = await send(run, "a")
    report = await scheduler.result(made, as_=Report)
    number: int = tick(run)
    kept: Run = sync.enqueue(to="a")
    await send.with_options(then=alone.with_args(to="b")).enqueue("a")
    await send.with_options(then=[alone, tick.with_options(delay="5m"), "other"]).enqueue("a")
    await scheduler.enqueue(send, {"to": "a"}, then={"handler": "other", "args": {"to": "b"}})
    async with scheduler.batch("import", then=send.with_args("a", copies=2)) as batch:
        await batch.enqueue(send, {"to": "a"}, then=alone)
    await scheduler.enqueue(send, {"to": "a"}, delay=timedelta(1))
    print(report, number, kept)


async def wrong(run: RunContext) -> None:
    await send.enqueue()  # 1
    await send.enqueue(to=1)  # 2
    await send.enqueue(too="a")  # 3
    await send.enqueue("a", "b")  # 4
    await send.enqueue("a", 1, 2)  # 5
    await send.with_options(dely="5s").enqueue("a")  # 6
    await send.with_options(delay=[5]).enqueue("a")  # 7
    await alone.enqueue(run, to="a")  # 8
    await tick.enqueue(1)  # 9
    await send("a")  # 10
    number: str = tick(run)  # 11
    wanted: int = await scheduler.result("id", as_=Report)  # 12
    sync.enqueue(to=b"a")  # 13
    made: Report = await send.enqueue(to="a")  # 14
    await send.with_options(then=alone.with_args(tu="b")).enqueue("a")  # 15
    await send.with_options(then=5).enqueue("a")  # 16
    send.with_args("a", copies="2")  # 17
    print(number, wanted, made)
"""
MISTAKES = 17
CHECKERS = [name for name in ("mypy", "basedpyright") if find_spec(name)]
COMMANDS = {"mypy": ("mypy", "--strict"), "basedpyright": ("basedpyright", "--level", "error")}


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_planted_mistake_is_found(checker: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    said = subprocess.run(
        [sys.executable, "-m", *COMMANDS[checker], "program.py"],
        cwd=tmp_path, env={**environment(), "MYPYPATH": environment()["PYTHONPATH"]}, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = {int(number) for number in re.findall(r"program\.py:(\d+):", said)}
    planted = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if re.search(r"# \d+$", line)}
    assert len(planted) == MISTAKES
    assert found == planted, said
