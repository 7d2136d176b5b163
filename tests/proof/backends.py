"""The stores under proof: each starts for itself, and says what may be done to it.

A fault is a function that returns when it is over. All of them strike every node at once:

    killed        kill -9 of the server, and a start on the same data
    stopped       stopped in order, and started after a second
    immediate     (PostgreSQL) `pg_ctl stop -m immediate`, as a failover looks, and started again
    stalled       SIGSTOP to all of its processes for a while: connections hang
    cut           every connection is reset, and new ones for a while
    silent        a network that swallows everything for a while; the connections of before are dead for good
    ended         (PostgreSQL) every session is terminated by an administrator
    power loss    (Redis, everysec) a crash that loses what the log had not brought to the disk: the last second
    always from now on   (Redis, everysec) no fault: from now on the log is synced at every write
    held          (SQLite) another process holds the file
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import apsw

from tests.proof.ledger import POWER_LOSS
from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres, binaries
from tests.servers.process import ServerProcess
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis
from tests.waiting import let_pass

ALWAYS = "always from now on"
DOWN_SECONDS = 1.0
KINDS = ("sqlite", "postgres", "redis", "redis-always", "valkey", "valkey-always", "mongo")
"""`redis` and `valkey` sync their log every second, `-always` at every write."""


@dataclass
class Backend:
    """A running store. `faults`: what may be done to it, by name, each for so many seconds."""

    kind: str
    url: str
    faults: dict[str, Callable[[float], None]] = field(default_factory=dict)


def start_backend(kind: str, folder: Path, stack: ExitStack) -> Backend:
    """One of KINDS, stopped when the stack is closed; or whatever stands behind a URL, which is left alone."""
    match kind:
        case "sqlite":
            path = folder / "store.db"
            return Backend(kind, f"sqlite:///{path}", {"held": partial(_hold, path)})
        case "postgres":
            return _postgres(stack)
        case "mongo":
            mongo = Mongo()
            proxy = _started(mongo, stack)
            url = f"mongodb://127.0.0.1:{proxy.port}/horarium?directConnection=true"
            return Backend(kind, url, _server_faults(mongo, proxy))
        case "redis" | "redis-always" | "valkey" | "valkey-always":
            return _redis(kind, stack)
    return Backend("url", kind)


def _postgres(stack: ExitStack) -> Backend:
    server = Postgres()
    proxy = _started(server, stack)
    faults = _server_faults(server, proxy) | {
        "immediate": lambda seconds: _stop_and_start(server, signal.SIGQUIT),
        "ended": lambda seconds: _end_sessions(server),
    }
    return Backend("postgres", f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?connections_max=8", faults)


def _redis(kind: str, stack: ExitStack) -> Backend:
    product, _, sync = kind.partition("-")
    server = Redis(product, appendfsync=sync or "everysec", auto_aof_rewrite_percentage="0")
    proxy = _started(server, stack)
    faults = _server_faults(server, proxy)
    if not sync:
        server.watch_log()
        faults[POWER_LOSS] = lambda seconds: server.lose_power()
        faults[ALWAYS] = lambda seconds: server.sync_always()
    return Backend(kind, f"redis://127.0.0.1:{proxy.port}/0", faults)


def _started(server: ServerProcess, stack: ExitStack) -> Proxy:
    """The server running, and a proxy before it."""
    stack.callback(server.stop)
    server.start()
    return stack.enter_context(Proxy(server.port))


def _server_faults(server: ServerProcess, proxy: Proxy) -> dict[str, Callable[[float], None]]:
    return {
        "killed": lambda seconds: server.restart(),
        "stopped": lambda seconds: _stop_and_start(server),
        "stalled": partial(_lasting, server.pause, server.resume),
        "cut": partial(_lasting, proxy.cut, proxy.heal),
        "silent": partial(_lasting, proxy.swallow, proxy.heal),
    }


def _lasting(begin: Callable[[], None], end: Callable[[], None], seconds: float) -> None:
    begin()
    let_pass(seconds)
    end()


def _stop_and_start(server: ServerProcess, number: signal.Signals | None = None) -> None:
    server.halt(number)
    let_pass(DOWN_SECONDS)
    server.start()


def _end_sessions(server: Postgres) -> None:
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'horarium'"
    command = [str(binaries() / "psql"), server.url, "-qAtc", sql]
    subprocess.run(command, check=True, capture_output=True)


def _hold(path: Path, seconds: float) -> None:
    holder = apsw.Connection(str(path))
    holder.set_busy_timeout(10_000)
    holder.execute("BEGIN EXCLUSIVE").close()
    let_pass(seconds)
    holder.execute("ROLLBACK").close()
    holder.close()
