"""The HTTP server around the application: uvicorn, with connections of ours, our own stop, and TLS where it is set."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from horarium.errors import Outage
from horarium.server.connections import Connection, Limits
from horarium.server.crowd import GONE, Crowd
from horarium.server.intake import Intake, connections_max
from horarium.server.memory import give_back

ROUND_MAX = 32
"""Requests that begin in one round of the loop."""


class Turns:
    """An ASGI application around another: a few requests begin in each round of the event loop, the others after them,
    in the order they came.

    A round does all that is ready. When a thousand clients ask at once, that would be a thousand requests, and all else
    that runs in this process (the planner, a claim, an answer of the store) would have its next turn after all of them:
    several tenths of a second for each step that it takes. So a round lasts milliseconds."""

    def __init__(self, app: Any, round_max: int = ROUND_MAX) -> None:
        self._app = app
        self._round_max = round_max
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._turn()
        await self._app(scope, receive, send)

    async def _turn(self) -> None:
        """Return now, or when those before it have had their turn."""
        if self._waiting or self._begun >= self._round_max:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._begin(self._begun + 1)

    def _begin(self, count: int) -> None:
        """This number has begun since the last round that was waited for; the next is waited for once it is the limit,
        since each round costs as much as a small request."""
        self._begun = count
        if count == self._round_max:
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._begin(min(len(self._waiting), self._round_max))
        for _ in range(self._begun):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)


HTTP_GRACE_SECONDS = 5
SWEEP_SECONDS = 0.5
"""Between two looks at the deadlines."""
GIVE_BACK_SWEEPS = 40
"""After how many of them freed memory goes back to the system."""
LATER_SECONDS = 10.0
"""How long after the last connection has gone it goes back once more: threads were still at work for it."""
FILES_WITHOUT_LIMIT = 1_000_000
ACCEPT_AGAIN_SECONDS = 1.0
LEAVE_SECONDS = 0.002
"""How long a new connection is left to the processes that have fewer. One that is busy, or hangs, does not take it."""

log = logging.getLogger("horarium.api")


class Accepting:
    """Takes connections from a socket on which other processes listen too, one at a time: so that of many that come at
    once each process gets some, and one that is busy fewer. (asyncio takes all that wait.) Where another process has
    fewer open, it is given a moment to be first: connections that come one by one, and stay, would else all go to the
    process that happens to wake up faster. `count`: how many this one has open."""

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], Coroutine[Any, Any, None]],
        crowd: Crowd,
        count: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._crowd = crowd
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._handing_over: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._turn)

    def note(self) -> None:
        """Tell the others how many this process has open."""
        gone = self._listener.fileno() < 0
        self._crowd.note(GONE if gone else self._count() + len(self._handing_over))

    def _turn(self) -> None:
        """There is a connection to accept."""
        self.note()
        if self._crowd.is_ahead():
            self._loop.remove_reader(self._listener.fileno())
            self._again = self._loop.call_later(LEAVE_SECONDS, self._accept_what_is_left)
        else:
            self._accept()

    def _accept_what_is_left(self) -> None:
        self._listen()
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client has gone
        except OSError as error:
            log.warning("no connection can be accepted: %s; trying again", error.strerror or error)
            self._loop.remove_reader(self._listener.fileno())
            self._again = self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._listen)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._accepted(connection))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)
        self.note()

    def close(self) -> None:
        """Accept no more, and keep no other process waiting."""
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self.note()

    async def wait_closed(self) -> None:
        """Return once accepted connections are handed over."""
        if self._handing_over:
            await asyncio.wait(self._handing_over)


class HttpServer(Server):
    """Its connections are bounded, and signals are ours: it stops when the node says so."""

    def __init__(
        self, config: Config, intake: Intake, limits: Limits, tls: ssl.SSLContext | None, crowd: Crowd | None
    ) -> None:
        self._stopped = asyncio.Event()
        self._intake = intake
        super().__init__(config)
        self._limits = limits
        self._tls = tls
        self._crowd = crowd

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on these sockets."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise Outage("the API could not be started; the log says why")
        self.servers = [await self._listen(each) for each in sockets or []]
        self.started = True

    async def _listen(self, listener: socket.socket) -> Any:
        if self._crowd is not None:
            return Accepting(listener, self._take, self._crowd, lambda: self._intake.open)
        return await asyncio.get_running_loop().create_server(
            self._connection, sock=listener, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds,
            backlog=self.config.backlog,
        )  # fmt: skip

    @property
    def _handshake_seconds(self) -> float | None:
        return self._limits.head_seconds if self._tls else None

    async def _take(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone, or speaks no TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open go on."""
        for each in self.servers:
            each.close()

    def _connection(self) -> Connection:
        return Connection(
            self._intake,
            self._limits,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @property
    def should_exit(self) -> bool:
        """Whether it stops. Setting it is how it is told to."""
        return self._stopped.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._stopped.set()
            self._intake.connected.set()

    async def main_loop(self) -> None:
        """Look at the deadlines of connections, and renew the date that answers carry, until told to stop. Without a
        connection there is nothing to look at."""
        sweeps = 0
        while not self.should_exit:
            sweeps += 1
            await self.on_tick(0)
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.expire(now)
            for each in self.servers:
                if isinstance(each, Accepting):
                    each.note()
            if sweeps % GIVE_BACK_SWEEPS == 0:
                give_back()
            if self.server_state.connections:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), SWEEP_SECONDS)
                continue
            self._intake.connected.clear()
            for seconds in (LATER_SECONDS, None):
                give_back()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._intake.connected.wait(), seconds)
                    break


def make_server(
    app: Any,
    count: Callable[[str], None],
    *,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    connections: int | None = None,
    crowd: Crowd | None = None,
) -> HttpServer:
    """A server for the application, made in the event loop in which it serves. `count` takes the reason of each
    refusal; `connections`: how many may be open, by default what the limit of open files allows. `crowd`: the
    processes that listen on its sockets too."""
    config = Config(
        Turns(app),
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
    return HttpServer(config, intake, limits or Limits(), tls, crowd)


def open_files() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return FILES_WITHOUT_LIMIT
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_WITHOUT_LIMIT if soft == resource.RLIM_INFINITY else soft
