"""Node, the TypeScript compiler and Go, as tools/install_servers.py brings them."""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.blackbox.outside import environment

ROOT = Path(__file__).parents[2]
TYPESCRIPT = ROOT / "clients" / "typescript"
GO = ROOT / "clients" / "go"
_INSTALL = runpy.run_path(str(ROOT / "tools" / "install_servers.py"))
BUILD_SECONDS = 240


def node() -> str:
    """The program. Fails where there is none."""
    return str(_INSTALL["node"]())


def go() -> str:
    """The same for Go."""
    found = _INSTALL["go"]()
    assert found is not None, "there is no Go: run tools/install_servers.py"
    return str(found)


def run(*command: str, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Its output; fails with all that it said."""
    done = subprocess.run(
        command, cwd=folder, env=environment(env), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_typescript(target: Path) -> Path:
    """Compiled, types and all, into this folder."""
    compiler = TYPESCRIPT / "node_modules" / "typescript" / "bin" / "tsc"
    assert compiler.exists(), "there is no TypeScript compiler: run tools/install_servers.py"
    run(node(), str(compiler), "--outDir", str(target), folder=TYPESCRIPT)
    (target / "package.json").write_text('{"type": "module"}')
    return target


def build_go(target: Path) -> Path:
    """The worker for the conformance kit."""
    run(go(), "build", "-o", str(target), "./conformance", folder=GO, env={"GOFLAGS": "-buildvcs=false"})
    return target
