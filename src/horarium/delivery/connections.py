"""The connections of one client: opened to addresses that were judged, and kept for a while for the next request."""

from __future__ import annotations

import asyncio
import errno
import ssl
from functools import cache

from aiohappyeyeballs import start_connection

from horarium.delivery.addresses import AddressInfo, Endpoint, Guard, RefusedAddress
from horarium.delivery.answers import EndpointResponse
from horarium.delivery.connection import Connection, NoAnswer

CONNECT_SECONDS = 10.0
NEXT_ADDRESS_SECONDS = 0.25
"""How long the first address of a name is tried alone (RFC 8305)."""
# Below the five seconds after which common servers close an idle connection, so that we rarely meet one closing.
KEEP_ALIVE_SECONDS = 4.0
IDLE_MAX = 256
"""Idle connections to all hosts together; beyond it, those that have waited longest are closed."""
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


@cache
def tls_context() -> ssl.SSLContext:
    """Certificates are judged by what this machine trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def trusted() -> ssl.SSLContext:
    """The same. The certificates are read for the first request that needs them, which holds up no other."""
    return tls_context() if tls_context.cache_info().currsize else await asyncio.to_thread(tls_context)


class Connections:
    """Asks endpoints, over connections that `guard` allows."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._idle: dict[Connection, str] = {}  # with their origins; the one that waits longest is the first
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, endpoint: Endpoint, method: str, request: bytes) -> EndpointResponse:
        """Send a request and wait for its answer. Raises NoAnswer. One that may be repeated is sent again if a kept
        connection ended just then: the endpoint closed it while it was idle."""
        headless = method == "HEAD"
        kept = self._take(endpoint.origin)
        connection = kept or await self._open(endpoint)
        try:
            answer = await connection.ask(request, headless=headless)
        except NoAnswer as none:
            if kept is None or not none.unheard or method not in _REPEATABLE:
                raise
            connection = await self._open(endpoint)
            answer = await connection.ask(request, headless=headless)
        self._keep(endpoint.origin, connection)
        return answer

    async def close(self) -> None:
        """End those that are idle. Others end with their present request; none is kept from now on."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._idle:
            for connection in self._idle:
                connection.abort()
            self._idle.clear()
            await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    # ---- kept

    def _take(self, origin: str) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while connection := next((each for each in reversed(self._idle) if self._idle[each] == origin), None):
            del self._idle[connection]
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _keep(self, origin: str, connection: Connection) -> None:
        if self._closed:
            connection.close()
        if not connection.usable:
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[connection] = origin
        if len(self._idle) > IDLE_MAX:
            self._drop(next(iter(self._idle)))
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_ALIVE_SECONDS, self._sweep)

    def _drop(self, connection: Connection) -> None:
        del self._idle[connection]
        connection.close()

    def _sweep(self) -> None:
        self._sweeping = None
        loop = asyncio.get_running_loop()
        for connection in list(self._idle):
            ends_at = connection.idle_since + KEEP_ALIVE_SECONDS
            if ends_at > loop.time():
                self._sweeping = loop.call_at(ends_at, self._sweep)
                return
            self._drop(connection)

    # ---- opened

    async def _open(self, endpoint: Endpoint) -> Connection:
        peer = endpoint.authority
        try:
            addresses = await self._guard.resolve(endpoint)
        except RefusedAddress as error:
            raise NoAnswer(str(error.strerror), retryable=False) from None
        except OSError as error:
            raise NoAnswer(f"the host of {peer} can't be resolved: {error.strerror or 'no answer'}") from None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect(endpoint, addresses)
        except RefusedAddress as error:
            raise NoAnswer(str(error.strerror), retryable=False) from None
        except TimeoutError:
            raise NoAnswer(f"no connection to {peer} within {CONNECT_SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            raise NoAnswer(_not_connected(error, peer)) from None

    async def _connect(self, endpoint: Endpoint, addresses: list[AddressInfo]) -> Connection:
        loop = asyncio.get_running_loop()
        opened = await start_connection(
            addresses,
            happy_eyeballs_delay=NEXT_ADDRESS_SECONDS,
            interleave=1,
            loop=loop,
            socket_factory=self._guard.open_socket,
        )
        tls = endpoint.scheme == "https"
        try:
            context = await trusted() if tls else None
            _, connection = await loop.create_connection(
                lambda: Connection(endpoint.authority, loop),
                sock=opened,
                ssl=context,
                server_hostname=endpoint.host if tls else None,
            )
        except BaseException:
            opened.close()
            raise
        return connection


def _not_connected(error: Exception, peer: str) -> str:
    """Why, in words that repeat nothing of what the peer sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS certificate of {peer} is not accepted: {error.verify_message or 'verification failed'}"
    if isinstance(error, ssl.SSLError | ValueError):
        return f"no TLS connection to {peer}: {getattr(error, 'reason', None) or 'handshake failed'}"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return f"connection refused by {peer}"
    return f"can't connect to {peer}: {getattr(error, 'strerror', None) or 'no answer'}"
