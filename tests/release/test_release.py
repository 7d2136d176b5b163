"""A release: the same bytes each time, and a wheel that serves in an empty environment of each Python that is here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.blackbox.outside import serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
BUILD_SECONDS = 300
BESIDE_THE_TESTS = {"PYTHONPATH": "", "VIRTUAL_ENV": ""}
"""The tests' own packages are out of reach of the environments that are made here."""


def others() -> Iterator[Path]:
    """One interpreter of each other version that can be found: on the path, or kept by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        on_path = shutil.which(f"python{version}")
        found = [*sorted(kept.glob(f"{version}*/bin/python{version}")), *([Path(on_path)] if on_path else [])]
        if found and f"python{version}" != f"python{sys.version_info[0]}.{sys.version_info[1]}":
            yield found[0]


def dist(target: Path, **env: str) -> dict[str, bytes]:
    subprocess.run(
        [sys.executable, ROOT / "tools" / "dist.py", "--no-isolation", "--outdir", target],
        env={**os.environ, **env}, timeout=BUILD_SECONDS, check=True,
    )  # fmt: skip
    return {path.name: path.read_bytes() for path in target.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    dist(target)
    return target


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    (found,) = made.glob("*.whl")
    return found


def test_a_second_build_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in made.iterdir()}
    assert len(first) == 4
    second = dist(tmp_path / "again", TZ="Asia/Tokyo", PYTHONHASHSEED="7")
    assert [name for name in first if first[name] != second.get(name)] == []


def test_the_bill_of_materials_is_valid_and_whole(made: Path) -> None:
    (path,) = made.glob("*.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()) is None
    bill = json.loads(path.read_text())
    assert datetime.fromisoformat(bill["metadata"]["timestamp"]).tzinfo is not None  # of no schema's concern
    listed = {each["name"]: each["scope"] for each in bill["components"]}
    assert {"msgspec": "required", "asyncpg": "optional", "htmx.org": "required"}.items() <= listed.items()
    assert "pytest" not in listed


LIBRARY = """
import asyncio
from horarium import Scheduler, every
from horarium.testing import travel
scheduler = Scheduler("sqlite:///alone.db")
@scheduler.job(every("1h"))
async def hourly(run): ...
async def main():
    async with scheduler:
        await scheduler.start()
    async with travel(scheduler, "2027-01-01T00:00Z") as clock:
        await clock.advance("1h")
        assert clock.ran("hourly") == ["2027-01-01T01:00Z"]
asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize(
    "python",
    [Path(sys.executable), *(pytest.param(other, marks=pytest.mark.proof) for other in others())],
    ids=lambda python: python.name,
)
def test_the_wheel_serves_in_an_empty_environment(python: Path, wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "env"
    subprocess.run([python, "-m", "venv", "--without-pip", home], env={**os.environ, **BESIDE_THE_TESTS}, check=True)
    inside = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(inside), "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, str(wheel)], timeout=BUILD_SECONDS, check=True)
    alone = subprocess.run([inside, "-c", LIBRARY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (alone.stdout, alone.returncode) == ("done\n", 0), alone.stderr
    command = subprocess.run([home / "bin" / "horarium", "serve"], capture_output=True, text=True, check=False)
    assert command.returncode == 1
    assert (
        command.stderr == "horarium: the command needs click, which is not installed; pip install 'horarium[server]'\n"
    )
    subprocess.run([*pip, f"{wheel}[server]"], timeout=BUILD_SECONDS, check=True)
    store = f"sqlite:///{tmp_path}/horarium.db"
    with serving(store, "--allow-private-targets", python=inside, env=BESIDE_THE_TESTS) as server:
        server.add("tick", 1, {"type": "queue", "queue": "ticks"})
        run_id, token = server.claim_one("ticks")
        server("POST", f"/runs/{run_id}/complete", {"token": token, "result": {"done": True}})
        assert server.run(run_id)["state"] == "completed"
        for page in ("/", "/swagger-ui", "/docs/openapi.json"):
            assert server.ask("GET", page).status == 200, page
