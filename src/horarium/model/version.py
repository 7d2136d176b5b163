"""Which code this is: the release, and the commit where the installation knows it."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path

COMMIT_CHARS = 8


def release() -> str:
    """The installed version."""
    try:
        return metadata.version("horarium")
    except metadata.PackageNotFoundError:
        return "0"


@cache
def version() -> str:
    """The release and its commit, as PEP 440 has them (`1.2.0+g27cb85f1`): of an installation from a repository (PEP
    610) or of a checkout. A release from an index is known by its number alone."""
    commit = _commit_installed() or _commit_checked_out(Path(__file__).parents[3] / ".git")
    return f"{release()}+g{commit[:COMMIT_CHARS]}" if commit else release()


def _commit_installed() -> str:
    try:
        text = metadata.distribution("horarium").read_text("direct_url.json")
        return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _commit_checked_out(git: Path) -> str:
    """What HEAD is, read as git lays it down."""
    try:
        if git.is_file():  # a work tree beside the repository
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        common = git / "commondir"
        shared = git / common.read_text().strip() if common.exists() else git
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        packed = (shared / "packed-refs").read_text().splitlines()
        return next((line.partition(" ")[0] for line in packed if line.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
