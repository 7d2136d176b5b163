"""A whole server of ours in a thread of the test's process: the real API on a real port, on a store in memory."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import uvicorn

from horarium.access.issuer import Issuer
from horarium.access.people import People
from horarium.access.tokens import TokenPolicy, Tokens
from horarium.api.app import Pages, create_app
from horarium.dashboard.app import dashboard
from horarium.node.backends import make_store
from horarium.node.runtime import Options, Runtime
from horarium.testing.conformance.stage import accept_no_more
from tests.servers.process import free_port
from tests.waiting import PATIENCE


class LiveServer:
    """Started and stopped as a whole; may be started again on the same port, with an empty store."""

    def __init__(
        self,
        api_keys: Sequence[str] = (),
        store: str = "memory://",
        *,
        issuer: str | None = None,
        audience: str = "",
        pages: bool = False,
        port: int = 0,
        client: tuple[str, str | None] | None = None,
    ) -> None:
        self._pages, self._client = pages, client
        self._api_keys = api_keys
        self._issuer, self._audience = issuer, audience
        self._store = store
        self.port = port or free_port()  # which nobody else takes while it is down
        self._socket = _listen(self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when requests are answered."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the server did not start"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failure = failure
            self._socket.close()
            self._ready.set()

    def begin_to_stop(self) -> None:
        """Tell it to drain and end, and wait for nothing."""
        self.loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """Drain and end."""
        self.begin_to_stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"

    def start_again(self) -> None:
        self._socket = _listen(self.port)
        self.start()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        options = Options(allow_private_targets=True, grace_seconds=2.0, roles=("api", "planner", "rescuer", "pruner"))
        runtime = Runtime(make_store(self._store), options)
        await runtime.open()
        await runtime.start()
        tokens = self._tokens(runtime)
        app = create_app(
            runtime.operations,
            runtime.claims,
            health=runtime.health,
            telemetry=runtime.telemetry,
            api_keys=self._api_keys,
            news=runtime.news,
            pages=self._dashboard(runtime, tokens) if self._pages else None,
            tokens=tokens,
            client_id="horarium",
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._socket])
        ticks = asyncio.create_task(_tick(server))
        self._ready.set()
        await self._stopping.wait()
        runtime.claims.close()
        runtime.news.close()
        ticks.cancel()
        await accept_no_more(self._socket)
        await server.shutdown(sockets=[self._socket])
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # of a client that does not read: a later test would be blamed for it
        await runtime.close()

    def _dashboard(self, runtime: Runtime, tokens: Tokens | None) -> Pages:
        people = None
        if tokens is not None and self._client is not None:
            people = People(tokens, *self._client, runtime.clock)
        return partial(dashboard, tally=runtime.telemetry.tally, people=people)

    def _tokens(self, runtime: Runtime) -> Tokens | None:
        if self._issuer is None:
            return None
        return Tokens(Issuer(self._issuer, runtime.clock), TokenPolicy(audience=self._audience), runtime.clock)


async def _tick(server: uvicorn.Server) -> None:
    """Keeps the server's Date header, as its own main loop would."""
    await server.main_loop()


def _listen(port: int) -> socket.socket:
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; without, answers wait 40 ms for an ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


@contextmanager
def live_server(
    api_keys: Sequence[str] = (),
    *,
    issuer: str | None = None,
    audience: str = "",
    pages: bool = False,
    port: int = 0,
    client: tuple[str, str | None] | None = None,
) -> Iterator[LiveServer]:
    """A server for the length of the `with`. `client`: id and secret for the sign-in of people in a browser."""
    server = LiveServer(api_keys, issuer=issuer, audience=audience, pages=pages, port=port, client=client)
    server.start()
    try:
        yield server
    finally:
        server.stop()
