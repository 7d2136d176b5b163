"""Other schedulers doing the same work, each a script of its own that runs in an environment of its own (they need
drivers and versions that Horarium does not). Each prints one line of JSON: {"add": runs/s, "run": runs/s}."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.figures import Figures

HERE = Path(__file__).parent
SECONDS_MAX = 300.0
BUILD_SECONDS_MAX = 900.0
RIVER = "github.com/riverqueue/river"


class Peer(Struct, frozen=True):
    """A script here, the program that runs it, and the packages that it needs from that program's registry."""

    script: str
    runtime: str
    packages: tuple[str, ...]


PEERS = {
    "bullmq": Peer("bullmq_peer.mjs", "node", ("bullmq", "ioredis")),
    "celery": Peer("celery_peer.py", "python", ("celery[redis]",)),
    "dramatiq": Peer("dramatiq_peer.py", "python", ("dramatiq[redis]", "hiredis")),
    "graphile-worker": Peer("graphile_peer.mjs", "node", ("graphile-worker@0.17",)),
    "pgqueuer": Peer("pgqueuer_peer.py", "python", ("pgqueuer", "asyncpg")),
    "procrastinate": Peer("procrastinate_peer.py", "python", ("procrastinate", "psycopg[binary,pool]")),
    "river": Peer("river_peer.go", "go", (f"{RIVER}@v0.51", f"{RIVER}/riverdriver/riverpgxv5@v0.51")),
}


class Peers:
    """Those that can run on this machine, made in `folder` at the first need and kept there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broken: set[str] = set()

    def missing(self, name: str) -> str | None:
        """The program that this machine lacks for it; None: it can run."""
        runtime = PEERS[name].runtime
        return None if runtime == "python" or shutil.which(runtime) else runtime

    def lacking(self) -> str:
        """Those that can't run on this machine, and why; empty: all can."""
        lacks = {name: missing for name in PEERS if (missing := self.missing(name)) is not None}
        return ", ".join(f"{name} (needs {missing})" for name, missing in lacks.items())

    def round(self, figures: Figures, name: str, url: str, count: int, label: str | None = None) -> None:
        """One round of it against this server. One that can't be made, or breaks, is left out from then on."""
        if name in self._broken:
            return
        try:
            home = self._made(name)
            done = _call([*self._command(name, home), url, str(count)], home, SECONDS_MAX)
            said = json.loads(done.strip().splitlines()[-1])
        except (OSError, RuntimeError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            self._broken.add(name)
            print(f"  ({name} is left out: {' '.join(str(error).split())[-300:]})", flush=True)
            return
        for what in ("add", "run"):
            figures.setdefault(f"{label or name} {what}", []).append(said[what])

    def _command(self, name: str, home: Path) -> list[str]:
        peer = PEERS[name]
        if peer.runtime == "go":
            return [str(home / "peer")]
        program = str(home / "bin" / "python") if peer.runtime == "python" else peer.runtime
        return [program, str(HERE / peer.script)]

    def _made(self, name: str) -> Path:
        peer, home = PEERS[name], self._folder / name
        if not (home / "made").exists():
            print(f"  ({name} is installed in {home}, once)", file=sys.stderr, flush=True)
            home.mkdir(parents=True, exist_ok=True)
            {"python": _with_pip, "node": _with_npm, "go": _with_go}[peer.runtime](home, peer)
            (home / "made").touch()
        return home


def _with_pip(home: Path, peer: Peer) -> None:
    _call([sys.executable, "-m", "venv", str(home)], home)
    _call([str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *peer.packages], home)


def _with_npm(home: Path, peer: Peer) -> None:
    _call(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(home), *peer.packages], home)


def _with_go(home: Path, peer: Peer) -> None:
    shutil.copy(HERE / peer.script, home / "main.go")
    if not (home / "go.mod").exists():
        _call(["go", "mod", "init", "peer"], home)
    _call(["go", "get", *peer.packages], home)
    _call(["go", "mod", "tidy"], home)
    _call(["go", "build", "-o", "peer", "."], home)


def _call(command: Sequence[str], folder: Path, seconds: float = BUILD_SECONDS_MAX) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])}: {done.stderr[-2000:]}")
    return done.stdout
