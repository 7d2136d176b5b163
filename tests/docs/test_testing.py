"""docs/testing.md: its tests pass, with pytest and with Django's own runner."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.outside import environment
from tests.docs.test_frameworks import DJANGO_SETTINGS, DJANGO_URLS, FASTAPI, JOBS, VIEWS

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
PROGRAM, FIRST, SYNC, ONE, ENQUEUED, OF_FASTAPI, OF_DJANGO = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LINES_MAX = 10
PLUGINS = ("-p", "horarium.testing.plugin", "-p", "pytest_asyncio.plugin")


def run(folder: Path, *command: str) -> str:
    """What a program that ends well has said."""
    environ = {**environment({"PYTHONPATH": str(folder)}), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ["PYTHONPATH"] += f":{environment()['PYTHONPATH']}"
    environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "jobs.py").write_text(PROGRAM.replace("sqlite:///", "sqlite:////nowhere/"))
    (tmp_path / "app.py").write_text(FASTAPI.replace("sqlite:///", "sqlite:////nowhere/"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    for number, program in enumerate((FIRST, SYNC, ONE, ENQUEUED, OF_FASTAPI)):
        (tmp_path / f"test_{number}.py").write_text(program.replace("sqlite:///", "sqlite:////nowhere/"))
    assert "5 passed" in run(tmp_path, "pytest", "-q", *PLUGINS)


@pytest.mark.slow
def test_the_test_of_django_passes(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    settings = DJANGO_SETTINGS.replace("sqlite:///horarium", "sqlite:////nowhere/horarium")
    parts = {
        "__init__": "",
        "settings": settings,
        "urls": DJANGO_URLS,
        "jobs": JOBS,
        "views": VIEWS,
        "tests": OF_DJANGO,
    }
    for name, text in parts.items():
        (shop / f"{name}.py").write_text(text)
    assert "Ran 1 test" in run(tmp_path, "django", "test", "shop")


def test_a_first_test_has_ten_lines_at_most() -> None:
    for program in (FIRST, OF_FASTAPI):
        assert len([line for line in program.splitlines() if line.strip()]) <= LINES_MAX
    assert len([line for line in OF_DJANGO.splitlines() if line.strip()]) <= LINES_MAX
