"""What deploy/ promises: it can be read, names settings that exist, and leaves a stop the time that it takes."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from configparser import RawConfigParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ruamel.yaml import YAML

from horarium.server.checks import check_settings
from horarium.server.config import Settings
from horarium.server.healthcheck import SECONDS_MAX, check
from horarium.server.http import HTTP_GRACE_SECONDS
from horarium.server.process import STORE_WAIT_SECONDS
from horarium.server.sources import load_settings
from tests.servers.certificate import make_certificate

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
    settings = settings_of({**image_environment(), **service["environment"]}, tmp_path)
    check_settings(settings)
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
    made = re.search(r"RUN python -m venv (\S+)", text)
    assert made
    assert dict(instructions())["COPY"] == f"--from=build {made[1]} {made[1]}"
    assert image_environment()["PATH"] == f"{made[1]}/bin:$PATH"


def test_each_library_says_how_old_it_may_be() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: wants for name, wants in project["optional-dependencies"].items() if name != "dev"}
    wanted = [*project["dependencies"], *(want for wants in extras.values() for want in wants)]
    assert [want for want in wanted if not want.startswith("horarium") and ">=" not in want] == []


def instructions() -> list[tuple[str, str]]:
    """Those of the image's last stage: word and rest."""
    text = (ROOT / "Dockerfile").read_text().rpartition("FROM ")[2].replace("\\\n", "")
    lines = [line.partition(" ") for line in text.splitlines()[1:] if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in lines]


def image_environment() -> dict[str, str]:
    """What ENV gives every process in it."""
    given = [part.partition("=") for word, rest in instructions() if word == "ENV" for part in rest.split()]
    return {name: value for name, _, value in given}


def test_the_image_runs_as_a_user_with_a_number_and_stops_in_order() -> None:
    known = dict(instructions())
    user, _, group = known["USER"].partition(":")
    assert user == group
    assert 0 < int(user) < 1_000
    assert any(word == "RUN" and f"--uid {user} " in rest for word, rest in instructions())
    assert known["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(known["CMD"]) == ["horarium", "serve"]  # not through a shell, which would keep the signal
    home = known["WORKDIR"]
    assert known["VOLUME"] == home
    assert any(word == "RUN" and f"-o horarium -g horarium {home}" in rest for word, rest in instructions())


@pytest.mark.parametrize("given", ["HORARIUM_STORE", "HORARIUM_STORE_FILE"])
def test_the_image_keeps_its_file_in_the_volume_and_takes_a_store_however_it_is_given(
    given: str, tmp_path: Path
) -> None:
    """Docker sets what ENV names in every container: a store there would stand against each HORARIUM_STORE_FILE."""
    assert settings_of(image_environment(), tmp_path).store == "sqlite:///horarium.db"  # in WORKDIR
    file = tmp_path / "horarium_store"
    value = str(file) if given.endswith("_FILE") else "postgresql://horarium@postgres/horarium"
    settings = settings_of({**image_environment(), given: value}, tmp_path)
    assert settings.store == "postgresql://horarium@postgres/horarium"
    assert settings.host == "0.0.0.0"


@pytest.fixture
def health_command() -> list[str]:
    """What the image asks, run by this interpreter."""
    options, _, command = dict(instructions())["HEALTHCHECK"].partition(" CMD ")
    given = dict(option.removeprefix("--").split("=") for option in options.split())
    assert float(given["timeout"].removesuffix("s")) > SECONDS_MAX
    assert float(given["start-period"].removesuffix("s")) > STORE_WAIT_SECONDS
    python, *rest = json.loads(command)
    assert python == "python"
    return [sys.executable, *rest]


class Answering(BaseHTTPRequestHandler):
    """A server that is ready, or not."""

    ready = True
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = b'{"status": "ready"}' if self.ready else b'{"store": "the disk is full"}'
        self.send_response(200 if self.ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_the_image_checks_its_health_by_its_own_settings(health_command: list[str], tmp_path: Path) -> None:
    names = {**image_environment(), "HORARIUM_STORE": f"sqlite:///{tmp_path}/horarium.db"}
    keys = tmp_path / "keys"
    keys.write_text("k" * 64)

    def ask(port: int, **more: str) -> tuple[int, str]:
        proxies = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
        given = {**names, **proxies, "HORARIUM_PORT": str(port), "HORARIUM_API_KEYS_FILE": str(keys), **more}
        done = subprocess.run(health_command, env={**given, "PATH": ""}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert ask(server.server_port) == (0, "")
        assert Answering.asked == ["/readyz"]
        Answering.ready = False
        status, said = ask(server.server_port)
        assert (status, "the disk is full" in said) == (1, True)
    finally:
        Answering.ready = True
        server.shutdown()
        server.server_close()
    status, said = ask(server.server_port)
    assert (status, "does not answer" in said) == (1, True)
    assert ask(server.server_port, HORARIUM_ROLES="planner") == (0, "")


def test_the_health_of_a_server_with_tls_is_asked_under_any_certificate(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    plain = {"HORARIUM_PORT": str(server.server_port)}
    try:
        assert check({**plain, "HORARIUM_TLS_CERT": str(cert), "HORARIUM_TLS_KEY": str(key)}) is None
        assert check(plain) is not None
    finally:
        server.shutdown()
        server.server_close()
    assert "port" in (check({"HORARIUM_PORT": "many"}) or "")


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


def test_what_the_units_file_of_settings_says_counts(tmp_path: Path) -> None:
    """The environment wins over the file: what the unit sets there can't be changed where its page says."""
    env = {value.partition("=")[0] for name, value in unit() if name == "Environment"}
    assert env == {"HORARIUM_API_KEYS_FILE"}
    values = dict(unit())
    home = values["WorkingDirectory"].replace("%S", "/var/lib")
    assert home == f"/var/lib/{values['StateDirectory']}"
    assert load_settings({}, {}, DEPLOY / "horarium.yaml").store == f"sqlite:///{home}/horarium.db"


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
