"""What deploy/ promises: it can be read, names settings that exist, and leaves a stop the time that it takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from horarium.server.config import Settings
from horarium.server.http import HTTP_GRACE_SECONDS
from horarium.server.sources import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STORES = ["sqlite", "postgresql", "redis", "mongodb"]
STOP_SECONDS = Settings().grace_seconds + HTTP_GRACE_SECONDS


def compose(store: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((DEPLOY / f"compose.{store}.yaml").read_text())
    return found


def settings_of(environment: dict[str, str], folder: Path) -> Settings:
    """The settings that these variables give, with a file in the place of each secret."""
    known = {
        "horarium_key": "k" * 64,
        "horarium_store": "postgresql://horarium@postgres/horarium",
        "api-keys": "k" * 64,
    }
    env = dict(environment)
    for name in [name for name in env if name.endswith("_FILE")]:
        file = folder / Path(env[name]).name
        file.write_text(known[file.name])
        env[name] = str(file)
    return load_settings({}, env)


@pytest.mark.parametrize("store", STORES)
def test_a_compose_file_starts_a_server_that_may_listen(store: str, tmp_path: Path) -> None:
    service = compose(store)["services"]["horarium"]
    settings = settings_of({"HORARIUM_HOST": "0.0.0.0", **service["environment"]}, tmp_path)
    settings.check()
    assert settings.store.startswith(f"{store}://")
    assert settings.allowed_hosts == ("horarium",)
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert "HORARIUM_API_KEYS" not in service["environment"]


@pytest.mark.parametrize("store", STORES)
def test_a_container_is_given_the_time_that_a_stop_takes(store: str) -> None:
    services = compose(store)["services"]
    assert int(services["horarium"]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    for name, service in services.items():
        assert name == "horarium" or "healthcheck" in service
        assert "stop_grace_period" in service


@pytest.mark.parametrize("store", STORES)
def test_what_a_compose_file_uses_is_in_it(store: str) -> None:
    content = compose(store)
    for service in content["services"].values():
        assert set(service.get("secrets", ())) <= set(content.get("secrets", {}))
        named = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert named <= set(content.get("volumes", {}))
        for other, how in service.get("depends_on", {}).items():
            assert "healthcheck" in content["services"][other]
            assert how == {"condition": "service_healthy"}
        assert (DEPLOY / service.get("build", "..")).resolve() == ROOT


def test_the_compose_file_of_the_root_is_one_of_these() -> None:
    root = YAML(typ="safe").load((ROOT / "compose.yaml").read_text())
    assert [(ROOT / each).is_file() for each in root["include"]] == [True]


def test_the_image_has_every_driver() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.fullmatch(r"horarium\[(.*)\]", everything)[1].split(","))  # type: ignore[index]
    assert named == set(extras) - {"all", "dev"}
    text = (ROOT / "Dockerfile").read_text()
    assert '".[all]"' in text
    assert '"horarium[all]"' in text


def test_the_image_checks_its_health_under_a_name_that_is_answered(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "http://127.0.0.1:8080/readyz" in text
    names = dict(
        part.split("=", 1) for part in re.findall(r"HORARIUM_\w+=\S+", text.split("ENV ", 1)[1].split("\n")[0])
    )
    assert settings_of({**names, "HORARIUM_API_KEYS": "k" * 16}, tmp_path).host == "0.0.0.0"


# ---- systemd


def unit() -> list[tuple[str, str]]:
    lines = [line for line in (DEPLOY / "horarium.service").read_text().splitlines() if "=" in line and line[0] != "#"]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def test_the_unit_leaves_a_stop_its_time_and_does_not_repeat_a_mistake() -> None:
    values = dict(unit())
    assert int(values["TimeoutStopSec"]) > STOP_SECONDS
    assert values["RestartPreventExitStatus"] == "2"
    assert int(values["LimitNOFILE"]) >= 20_000


def test_the_unit_starts_a_server_with_settings_that_exist(tmp_path: Path) -> None:
    env = dict(value.split("=", 1) for name, value in unit() if name == "Environment")
    settings = settings_of(env, tmp_path)
    assert settings.api_keys == ("k" * 64,)
    assert load_settings({}, {}, DEPLOY / "horarium.yaml").log_format == "json"


def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    RawConfigParser(strict=False).read_string((DEPLOY / "horarium.service").read_text())
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing; install systemd"
    copy = tmp_path / "horarium.service"
    text = (DEPLOY / "horarium.service").read_text()
    copy.write_text(text.replace("/opt/horarium/bin/horarium", str(Path(sys.executable).with_name("horarium"))))
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert "horarium.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
