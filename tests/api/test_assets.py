"""The browser assets: only what was locked gets in, and only the files that are shipped."""

from __future__ import annotations

import hashlib
import json
import runpy
import tarfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "build_assets.py"))


def an_archive(folder: Path) -> tuple[Path, str]:
    """An npm archive with two files, and its integrity."""
    (folder / "package").mkdir()
    for name in ("page.js", "other.js"):
        (folder / "package" / name).write_text(name)
    archive = folder / "thing-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "package", "package")
    return archive, "sha512-" + b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def test_only_the_files_that_are_shipped_are_unpacked(tool: dict[str, Any], tmp_path: Path) -> None:
    archive, integrity = an_archive(tmp_path)
    package = tool["Package"]("thing", "1.0.0", integrity, {"page.js": "ours.js"})
    target = tmp_path / "assets"
    target.mkdir()
    tool["verify"](archive, package)
    tool["unpack"](archive, package, target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {"ours.js": "page.js"}


def test_an_archive_that_is_not_the_locked_one_is_refused(tool: dict[str, Any], tmp_path: Path) -> None:
    archive, _ = an_archive(tmp_path)
    package = tool["Package"]("thing", "1.0.0", "sha512-AAAA", {"page.js": "page.js"})
    with pytest.raises(tool["AssetsMissing"], match="is not what it was"):
        tool["verify"](archive, package)


def test_assets_that_are_there_are_not_fetched_again(tool: dict[str, Any], tmp_path: Path) -> None:
    package = tool["Package"]("thing", "1.0.0", "sha512-AAAA", {"page.js": "page.js"})
    (tmp_path / "page.js").write_text("x")
    (tmp_path / tool["STAMP"]).write_text(json.dumps({"thing@1.0.0": "sha512-AAAA"}))
    assert tool["build_assets"](tmp_path, (package,)) is False
    assert (tmp_path / "page.js").read_text() == "x"


def test_every_package_is_locked_by_version_and_hash(tool: dict[str, Any]) -> None:
    for package in tool["PACKAGES"]:
        assert package.integrity.startswith("sha512-")
        assert len(package.integrity) == 95
        assert package.version[0].isdigit()


def test_assets_are_never_committed() -> None:
    assert "src/horarium/api/assets/" in (ROOT / ".gitignore").read_text().splitlines()
