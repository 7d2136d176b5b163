"""A real Keycloak, whose distribution comes from Maven Central, and what its administrator does over its API."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from tests.servers.process import ServerProcess
from tests.waiting import eventually

VERSION = "26.7.3"
ARTIFACT = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
HOME = Path(tempfile.gettempdir()) / f"horarium-keycloak-{os.getuid()}"
START_SECONDS = 400.0
ADMIN = "admin"
REALM = "work"


def distribution() -> Path:
    """Where it is unpacked; fetched the first time (180 MB, with Maven)."""
    unpacked = HOME / f"keycloak-{VERSION}"
    if not (unpacked / "bin" / "kc.sh").exists():
        HOME.mkdir(exist_ok=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        subprocess.run(
            ["mvn", "-q", "-B", goal, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={HOME}"], check=True, cwd=HOME
        )
        with zipfile.ZipFile(HOME / f"keycloak-quarkus-dist-{VERSION}.zip") as archive:
            archive.extractall(HOME)
        (unpacked / "bin" / "kc.sh").chmod(0o755)
    return unpacked


class Keycloak(ServerProcess):
    """`url` is the issuer of the realm `work`."""

    def __init__(self) -> None:
        home = distribution()

        def command(folder: Path, port: int) -> list[str]:
            flags = ["--http-host=127.0.0.1", f"--http-port={port}", "--db=dev-mem"]
            return [str(home / "bin" / "kc.sh"), "start-dev", *flags]

        def environment(folder: Path, port: int) -> dict[str, str]:
            return {
                "KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN,
                "KC_BOOTSTRAP_ADMIN_PASSWORD": ADMIN,
                "JAVA_OPTS_KC_HEAP": "-Xms128m -Xmx512m",
            }

        super().__init__("keycloak", command, environment=environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/realms/{REALM}"

    def start(self) -> None:
        """Until it answers."""
        super().start()
        eventually(self.token, START_SECONDS, what="Keycloak")

    def serves(self) -> bool:
        """It is built when it is started for the first time, which takes minutes: `start` waits for it."""
        return True

    def token(self) -> str:
        """The administrator's."""
        form = {"grant_type": "password", "client_id": "admin-cli", "username": ADMIN, "password": ADMIN}
        url = f"http://127.0.0.1:{self.port}/realms/master/protocol/openid-connect/token"
        with urllib.request.urlopen(url, urllib.parse.urlencode(form).encode(), timeout=60) as answer:
            found: str = json.load(answer)["access_token"]
        return found

    def manage(self, method: str, path: str, body: Any = None) -> Any:
        """A request to its API, below the realm (or, for an empty path, of all realms)."""
        url = f"http://127.0.0.1:{self.port}/admin/realms{path}"
        headers = {"authorization": f"Bearer {self.token()}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None
