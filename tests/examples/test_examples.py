"""The examples run as they stand, and say what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent


def run(name: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_library_example_ticks_retries_and_works_in_threads() -> None:
    said = run("library.py")
    assert said.count("tick for") >= 2
    assert "compressed 3 MB" in said
    assert "the charge is completed after 2 attempts" in said


@pytest.mark.slow
def test_the_demonstration_delivers_across_a_kill() -> None:
    said = run("demo.py", DEMO_SECONDS="5")
    assert "kill -9" in said
    assert "of them a repetition" in said
    before, after = said.split("-- kill -9")
    assert before.count("-> 200") >= 3
    assert after.count("-> 200") >= 3
