"""The HTTP server around the application: uvicorn, with connections of ours, our own stop, and TLS where it is set."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from horarium.errors import InvalidSetting, Outage
from horarium.server.connections import Connection, Limits
from horarium.server.intake import Intake, connections_max

HTTP_GRACE_SECONDS = 5
SWEEP_TICKS = 5
"""Ticks of 0.1 s between two looks at the deadlines."""
FILES_WITHOUT_LIMIT = 1_000_000


class HttpServer(uvicorn.Server):
    """Its connections are bounded, and signals are ours: it stops when the node says so."""

    def __init__(self, config: uvicorn.Config, intake: Intake, limits: Limits, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._intake = intake
        self._limits = limits
        self._tls = tls

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on these sockets."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise Outage("the API could not be started; the log says why")
        loop = asyncio.get_running_loop()
        handshake = self._limits.head_seconds if self._tls else None
        self.servers = [
            await loop.create_server(
                self._connection, sock=each, ssl=self._tls, ssl_handshake_timeout=handshake, backlog=self.config.backlog
            )
            for each in sockets or []
        ]
        self.started = True

    def _connection(self) -> Connection:
        return Connection(
            self._intake,
            self._limits,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % SWEEP_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.expire(now)
        return await super().on_tick(counter)


def make_server(
    app: Any,
    count: Callable[[str], None],
    *,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    connections: int | None = None,
) -> HttpServer:
    """A server for the application, made in the event loop in which it serves. `count` takes the reason of each
    refusal; `connections`: how many may be open, by default what the limit of open files allows."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=HTTP_GRACE_SECONDS,
        timeout_keep_alive=75,
        server_header=False,
        date_header=True,
        ws="none",
        proxy_headers=False,
    )
    most = connections_max(open_files()) if connections is None else connections
    intake = Intake(most, count, asyncio.get_running_loop().time)
    return HttpServer(config, intake, limits or Limits(), tls)


def open_files() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return FILES_WITHOUT_LIMIT
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_WITHOUT_LIMIT if soft == resource.RLIM_INFINITY else soft


def tls_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS with this certificate, None without one. Raises InvalidSetting where the files can't be used."""
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        message = (
            f"tls_cert, tls_key: {cert} and {key} can't be used: {why}; expected a PEM chain and its key, not encrypted"
        )
        raise InvalidSetting(message, field="tls_cert") from None
    return context
