"""A disk that can be full: a small file system in memory where that may be mounted, else a limit on file sizes."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Self

from tests.proof.harness import Node

SIZE_BYTES = 24 * 1024 * 1024
"""Room for the log before it is copied into the file (8 MiB), and to spare."""


class SmallDisk:
    """A folder whose disk can be filled and freed. `real`: it is a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.real = False

    def __enter__(self) -> Self:
        self.folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(self.folder)]
        self.real = subprocess.run(command, capture_output=True, check=False).returncode == 0
        return self

    def __exit__(self, *exc: object) -> None:
        if self.real:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self, node: Node) -> None:
        """No byte more can be written by this node."""
        if not self.real:
            longest = max(path.stat().st_size for path in self.folder.iterdir())
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (longest, resource.RLIM_INFINITY))
            return
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (65_536, 4_096):
                try:
                    while True:
                        ballast.write(b"x" * size)
                except OSError:
                    continue

    def free(self, node: Node) -> None:
        if not self.real:
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return
        (self.folder / "ballast").unlink()
