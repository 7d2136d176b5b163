"""docs/triggers.md and docs/triggers-recurrence.md: the programs print what their comments say, and the rules parse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from horarium import rrule
from tests.waiting import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"


def program_of(page: str) -> str:
    (text,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return str(text)


@pytest.mark.slow
def test_the_first_example_prints_what_its_comments_say() -> None:
    program = program_of("triggers.md")
    said = [line.split("# ", 1)[1] for line in program.splitlines() if line.startswith("print")]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines() == said


def test_the_recurrence_example_is_the_last_friday_of_the_month() -> None:
    rule = eval(program_of("triggers-recurrence.md"), {"rrule": rrule})
    assert str(rule) == "on the last Friday of every month at 17:00, Europe/Berlin"
