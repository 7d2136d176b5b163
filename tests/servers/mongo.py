"""A mongod as a replica set of one node. For tests only."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.process import ServerProcess


class Mongo(ServerProcess):
    """`url` names the database `horarium`."""

    def __init__(self) -> None:
        mongod = Path(sys.prefix) / "bin" / "mongod"
        if not mongod.exists():
            raise RuntimeError("mongod is not installed: run tools/install_servers.py")

        def command(folder: Path, port: int) -> list[str]:
            (folder / "db").mkdir(exist_ok=True)
            fixed = ["--bind_ip", "127.0.0.1", "--replSet", "rs0", "--wiredTigerCacheSizeGB", "0.25", "--nounixsocket"]
            return [str(mongod), "--dbpath", str(folder / "db"), "--port", str(port), *fixed]

        super().__init__("mongo", command)

    def start(self) -> None:
        super().start()
        from pymongo import MongoClient

        client: MongoClient[Any] = MongoClient("127.0.0.1", self.port, directConnection=True)
        try:
            self._become_primary(client)
        finally:
            client.close()

    def _become_primary(self, client: Any) -> None:
        from pymongo.errors import OperationFailure

        members = [{"_id": 0, "host": f"127.0.0.1:{self.port}"}]
        try:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        except OperationFailure as error:
            if error.code != 23:  # AlreadyInitialized: a restart
                raise
        deadline = time.monotonic() + 30
        while not client.admin.command("hello").get("isWritablePrimary"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"mongod did not become primary:\n{self.log()}")
            time.sleep(0.02)

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/horarium?replicaSet=rs0"
