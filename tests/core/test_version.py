"""Which code this is, as an installation or a checkout tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from horarium.model import version as module

COMMIT = "27cb85f1" + "0" * 32


def lay(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": COMMIT},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": COMMIT + "\n"},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
        {
            ".git": "gitdir: main/worktrees/w\n",
            "main/worktrees/w/HEAD": "ref: refs/heads/w\n",
            "main/worktrees/w/commondir": "../..\n",
            "main/refs/heads/w": COMMIT,
        },
    ],
)
def test_the_commit_of_a_checkout_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        lay(tmp_path / name, text)
    assert module._commit_checked_out(tmp_path / ".git") == COMMIT


def test_where_there_is_no_repository_the_release_is_all(tmp_path: Path) -> None:
    assert module._commit_checked_out(tmp_path / ".git") == ""
    lay(tmp_path / ".git/HEAD", "ref: refs/heads/unborn\n")
    assert module._commit_checked_out(tmp_path / ".git") == ""


def test_a_version_begins_with_the_release() -> None:
    assert module.version().partition("+")[0] == module.release()
