"""docs/triggers.md and docs/triggers-recurrence.md: the programs print what their comments say, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"


pytestmark = pytest.mark.slow


def program_of(page: str) -> str:
    (text,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return str(text)


@pytest.mark.parametrize("page", ["triggers.md", "triggers-recurrence.md"])
def test_an_example_prints_what_its_comments_say(page: str) -> None:
    program = program_of(page)
    said = [line.split("# ", 1)[1] for line in program.splitlines() if "# " in line]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines() == said
