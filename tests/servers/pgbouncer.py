"""A PgBouncer in transaction mode before a PostgreSQL. For tests only."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from tests.servers.process import ServerProcess


class PgBouncer(ServerProcess):
    """`url` names the same database as `behind` (`postgresql://postgres@127.0.0.1:PORT/DATABASE`) does, through it."""

    def __init__(self, behind: str, **settings: str) -> None:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(program).exists():
            raise RuntimeError("pgbouncer is not installed: run tools/install_servers.py")
        user = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        address, _, self._database = behind.rpartition("@")[2].partition("/")
        host, _, port_behind = address.partition(":")
        lines = {"listen_addr": "127.0.0.1", "auth_type": "any", "pool_mode": "transaction", "unix_socket_dir": ""}
        lines |= {"default_pool_size": "4", "max_client_conn": "200", **settings}

        def command(folder: Path, port: int) -> list[str]:
            text = f"[databases]\n{self._database} = host={host} port={port_behind} user=postgres\n[pgbouncer]\n"
            text += f"listen_port = {port}\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())
            (folder / "pgbouncer.ini").write_text(text)
            return [program, str(folder / "pgbouncer.ini")]

        ids = (user.pw_uid, user.pw_gid) if user else (None, None)
        super().__init__("pgbouncer", command, user=ids[0], group=ids[1])

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self._database}"
