"""Builds a release into dist/: source distribution, wheel, their bill of materials and checksums.

Used by `make dist`. The same commit gives the same bytes with the same hatchling (the wheel names its version): files
carry the time of SOURCE_DATE_EPOCH or of the commit. The wheel is built from the source distribution, as by a user of
an index. A package without the browser assets, with which hatch_build.py only warns, is no release: it fails here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).resolve().parent.parent
SPDX = {"swagger-ui-dist": "Apache-2.0", "htmx.org": "0BSD"}


class NoRelease(Exception):
    """The text says why there is none."""


def build(target: Path, *options: str) -> list[Path]:
    """The files of a release, fresh in `target`. Raises NoRelease."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or commit_time()
    command = [sys.executable, "-m", "build", *options]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--outdir", folder, str(ROOT)],
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NoRelease(done.stdout[-2000:] + done.stderr[-2000:])
        packages = sorted(Path(folder).iterdir())
        for package in packages:
            check_assets(package)
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("horarium-*"):
            old.unlink()
        packages = [Path(shutil.copy(package, target)) for package in packages]
    (wheel,) = (package for package in packages if package.suffix == ".whl")
    bill = target / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(wheel, int(epoch)), indent=2) + "\n")
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in [*packages, bill])
    (target / "SHA256SUMS").write_text(sums)
    return [*packages, bill, target / "SHA256SUMS"]


def commit_time() -> str:
    """The time of the newest commit, in seconds since 1970."""
    try:
        done = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        raise NoRelease("this is no git checkout: set SOURCE_DATE_EPOCH to the time of the release") from None
    return done.stdout.strip()


def names_in(package: Path) -> list[str]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return archive.namelist()
    with tarfile.open(package) as packed:
        return packed.getnames()


def check_assets(package: Path) -> None:
    """Raises NoRelease for a package in which a browser asset is missing."""
    names = names_in(package)
    wanted = [file for each in npm_packages() for file in each.files.values()]
    missing = [file for file in wanted if not any(name.endswith(f"horarium/api/assets/{file}") for name in names)]
    if missing:
        raise NoRelease(
            f"{package.name} lacks {', '.join(missing)}: run `python tools/build_assets.py`, which says why"
        )


def npm_packages() -> tuple[Any, ...]:
    found: tuple[Any, ...] = runpy.run_path(str(ROOT / "tools" / "build_assets.py"))["PACKAGES"]
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def bill_of_materials(wheel: Path, epoch: int) -> dict[str, Any]:
    """CycloneDX 1.6: what the wheel requires, with its range of versions, and what is packed into it, with its hash."""
    about = metadata_of(wheel)
    name, version = about["Name"], about["Version"]
    itself = {
        "type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version,
        "description": about["Summary"], "licenses": [{"license": {"id": about["License-Expression"]}}],
        "purl": f"pkg:pypi/{name}@{version}", "hashes": [{"alg": "SHA-256", "content": digest(wheel)}],
    }  # fmt: skip
    components = [*required(about), *packed_in()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, digest(wheel))}",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(), "component": itself},
        "components": components,
        "dependencies": [{"ref": itself["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }


def required(about: Message) -> Iterator[dict[str, Any]]:
    """Each package that the metadata names, once."""
    found: dict[str, dict[str, Any]] = {}
    for line in about.get_all("Requires-Dist") or ():
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)", line)
        assert match is not None
        extra = re.search(r"extra == ['\"]([\w-]+)", line)
        if match[1] == about["Name"] or (extra and extra[1] == "dev"):
            continue
        purl = f"pkg:pypi/{match[1].lower().replace('_', '-')}"
        component = {
            "type": "library", "bom-ref": purl, "name": match[1], "purl": purl,
            "scope": "optional" if extra else "required",
            "properties": [{"name": "horarium:versions", "value": match[2].strip() or "any"}],
        }  # fmt: skip
        if extra:
            component["properties"].append({"name": "horarium:extra", "value": extra[1]})  # type: ignore[union-attr]
        found.setdefault(purl, component)
    yield from found.values()


def packed_in() -> Iterator[dict[str, Any]]:
    for package in npm_packages():
        purl = f"pkg:npm/{package.name}@{package.version}"
        yield {
            "type": "library", "bom-ref": purl, "name": package.name, "version": package.version, "purl": purl,
            "scope": "required", "licenses": [{"license": {"id": SPDX[package.name]}}],
            "hashes": [{"alg": "SHA-512", "content": b64decode(package.integrity.removeprefix("sha512-")).hex()}],
        }  # fmt: skip


def main() -> int:
    """0: the release is in dist/. 1: there is none, and why."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-isolation", action="store_true", help="build with the hatchling of this environment")
    given = parser.parse_args()
    try:
        files = build(given.outdir, *(["--no-isolation"] if given.no_isolation else []))
    except NoRelease as why:
        print(f"dist: {why}", file=sys.stderr)
        return 1
    for path in files:
        print(f"{digest(path)[:16]}  {path.stat().st_size:>9,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
