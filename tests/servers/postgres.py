"""A PostgreSQL of its own, never run as root."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path

from tests.servers.process import ServerProcess

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "log_min_messages": "warning",
}


def binaries() -> Path:
    """The newest installed server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise RuntimeError("PostgreSQL is not installed: run tools/install_servers.py")
    return found[-1]


class Postgres(ServerProcess):
    """`url` is that of the database `postgres`, user `postgres`, trusted on the loopback."""

    def __init__(self, **settings: str) -> None:
        user = group = None
        if os.getuid() == 0:
            entry = pwd.getpwnam("postgres")
            user, group = entry.pw_uid, entry.pw_gid
        merged = {**SETTINGS, **settings}

        def command(folder: Path, port: int) -> list[str]:
            options = [f"--{name.replace('_', '-')}={value}" for name, value in merged.items()]
            return [
                str(binaries() / "postgres"),
                "-D",
                str(folder / "data"),
                "-p",
                str(port),
                "-k",
                str(folder),
                *options,
            ]

        # Even when it ends at once it must take its shared memory away.
        super().__init__(
            "postgres", command, user=user, group=group, stop_signal=signal.SIGINT, end_signal=signal.SIGQUIT
        )
        self._initialise()

    def _initialise(self) -> None:
        subprocess.run(
            [str(binaries() / "initdb"), "-D", str(self.folder / "data"), "-A", "trust", "-U", "postgres", "-N"],
            check=True,
            capture_output=True,
            user=self._user,
            group=self._group,
            extra_groups=[] if self._user is not None else None,
            cwd=self.folder,
        )

    def serves(self) -> bool:
        """After a crash its port is open for as long as it brings its data up to date."""
        return super().serves() and not subprocess.call(
            [str(binaries() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        )

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"


class Standby(Postgres):
    """A streaming replica of a running primary."""

    def __init__(self, primary: Postgres) -> None:
        self._primary = primary
        super().__init__()

    def _initialise(self) -> None:
        program, data = str(binaries() / "pg_basebackup"), str(self.folder / "data")
        subprocess.run(
            [program, "-d", self._primary.url, "-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync"],
            check=True,
            capture_output=True,
            user=self._user,
            group=self._group,
            extra_groups=[] if self._user is not None else None,
            cwd=self.folder,
        )
