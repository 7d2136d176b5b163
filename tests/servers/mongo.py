"""A mongod as a replica set of one node, several as one of three, or one that stands alone. For tests only."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from tests.servers.process import ServerProcess

PRIMARY_SECONDS = 120.0
ELECTION_MILLISECONDS = 2_000
"""After so long without a sign of life from the primary the others elect another one; the default is 10 s."""
USER = "horarium"


class Mongo(ServerProcess):
    """`url` names the database `horarium`. `private`: with a user who has `readWrite` on it, and nothing else."""

    def __init__(self, *, private: bool = False) -> None:
        mongod = Path(sys.prefix) / "bin" / "mongod"
        if not mongod.exists():
            raise RuntimeError("mongod is not installed: run tools/install_servers.py")
        self._password = token_hex(12) if private else None

        def command(folder: Path, port: int) -> list[str]:
            (folder / "db").mkdir(exist_ok=True)
            fixed = ["--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25", "--nounixsocket"]
            key = ["--keyFile", str(_key_file(folder))] if private else []
            return [str(mongod), "--dbpath", str(folder / "db"), "--port", str(port), *fixed, *self._member(), *key]

        super().__init__("mongo", command)

    def _member(self) -> list[str]:
        return ["--replSet", "rs0"]

    def start(self) -> None:
        super().start()
        self.become_primary([self])

    def become_primary(self, members: list[Mongo], **settings: int) -> None:
        """The primary of a set of these nodes, if there is none yet."""
        from pymongo import MongoClient
        from pymongo.errors import OperationFailure

        config: dict[str, Any] = {
            "_id": "rs0",
            # The first is preferred, so that it is certain which one it is.
            "members": [{"_id": n, "host": node.address, "priority": 2 - (n > 0)} for n, node in enumerate(members)],
            "settings": settings,
        }
        client: MongoClient[Any] = MongoClient("127.0.0.1", self.port, directConnection=True)
        try:
            try:
                client.admin.command("replSetInitiate", config)
            except OperationFailure as error:
                if error.code not in {13, 23}:  # Unauthorized, AlreadyInitialized: a restart
                    raise
                self._wait_for_primary(client)
            else:
                self._wait_for_primary(client)
                self._create_user(client)
        finally:
            client.close()

    def _wait_for_primary(self, client: Any) -> None:
        deadline = time.monotonic() + PRIMARY_SECONDS
        while not client.admin.command("hello").get("isWritablePrimary"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"mongod did not become primary:\n{self.log()}")
            time.sleep(0.02)

    def _create_user(self, client: Any) -> None:
        """Whoever comes from the same machine may make the first user, who then makes ours."""
        from pymongo import MongoClient

        if self._password is None:
            return
        client.admin.command("createUser", "root", pwd=self._password, roles=["root"])
        root: MongoClient[Any] = MongoClient(
            "127.0.0.1", self.port, username="root", password=self._password, directConnection=True
        )
        roles = [{"role": "readWrite", "db": "horarium"}]
        root.admin.command("createUser", USER, pwd=self._password, roles=roles)
        root.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        if self._password is None:
            return f"mongodb://{self.address}/horarium?replicaSet=rs0"
        return f"mongodb://{USER}:{self._password}@{self.address}/horarium?replicaSet=rs0&authSource=admin"


class Standalone(Mongo):
    """In no replica set; without transactions, therefore."""

    def start(self) -> None:
        ServerProcess.start(self)

    def _member(self) -> list[str]:
        return []

    @property
    def url(self) -> str:
        return f"mongodb://{self.address}/horarium?directConnection=true"


def let_the_hold_run_out(url: str) -> None:
    """As if the time had passed after which a process that died is succeeded."""
    from pymongo import MongoClient

    client: MongoClient[Any] = MongoClient(url)
    client.horarium.horarium_intents.update_many({}, {"$set": {"until": datetime(1970, 1, 1, tzinfo=UTC)}})
    client.close()


class MongoSet:
    """Three nodes, of which the first becomes primary, and will be again if it comes back."""

    def __init__(self) -> None:
        self.nodes = [Member() for _ in range(3)]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.nodes[0].become_primary(list(self.nodes), electionTimeoutMillis=ELECTION_MILLISECONDS)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        return f"mongodb://{','.join(node.address for node in self.nodes)}/horarium?replicaSet=rs0"


class Member(Mongo):
    """One of several: it becomes something only together with the others."""

    def start(self) -> None:
        ServerProcess.start(self)


def _key_file(folder: Path) -> Path:
    path = folder / "key"
    if not path.exists():
        path.write_text(token_hex(32))
        path.chmod(0o600)
    return path
