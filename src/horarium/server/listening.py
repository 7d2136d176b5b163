"""Where a server listens, and what it says about that."""

from __future__ import annotations

import socket
import ssl

from horarium.errors import InvalidSetting, Outage
from horarium.server.config import Settings

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a clear error."""
    try:
        # As bytes: for text, Python loads its tables of all characters.
        name = host.encode() if host.isascii() else host
        family, *_, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        # asyncio sets TCP_NODELAY only on sockets that name their protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise Outage(
            f"host, port: can't listen on {host}:{port}: {error.strerror or error}; is another server running there?",
            field="port",
        ) from None
    listener.setblocking(False)
    return listener


def own_url(settings: Settings, listener: socket.socket | None) -> str:
    """The server's address, as it is on this machine."""
    port = listener.getsockname()[1] if listener is not None else settings.port
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def greeting(settings: Settings, url: str) -> str:
    """The lines at the start."""
    roles = ", ".join(settings.roles)
    return f"listening on {url} ({roles})" if "api" in settings.roles else f"running ({roles})"


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
