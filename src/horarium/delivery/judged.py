"""Judges connections that a library opens for itself, where no guard can be handed to it.

Python tells its audit hooks of every connection before it is made (PEP 578), whichever library asks for it: after a
name was resolved, after a redirect, for datagrams too. The hook judges those of a context that asked for it by
`judging`, and no others. It can't see what a library in another language than Python connects to.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from ipaddress import ip_address
from logging import LogRecord
from urllib.parse import urlsplit

from horarium.delivery.addresses import RefusedAddress, refusal

_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_NOT_A_NETWORK = "a socket of this machine is not a public address"


class Judge:
    """The allowed addresses. `refused`: why a connection was not made, once one was not. A proxy that the environment
    names may always be connected to; what lies beyond it is the proxy's to judge."""

    def __init__(self, *, allow_private: bool) -> None:
        self.refused: str | None = None
        self._allow_private = allow_private
        self._passed = _proxies()

    def judge(self, address: object) -> None:
        """Raises RefusedAddress for one that may not be sent to."""
        reason = self._reason(address)
        if reason is not None:
            self.refused = reason
            raise RefusedAddress(None, reason)

    def _reason(self, address: object) -> str | None:
        if address is None:
            return None
        if not isinstance(address, tuple):
            return None if self._allow_private else _NOT_A_NETWORK
        host, port = str(address[0]), address[1]
        for text in _addresses(host, port):
            if (text, port) not in self._passed:
                reason = refusal(ip_address(text), host, self._allow_private)
                if reason is not None:
                    return reason
        return None


_judging: ContextVar[Judge | None] = ContextVar("judging", default=None)


@contextmanager
def judging(judge: Judge) -> Iterator[None]:
    """Every connection that is opened inside is judged first."""
    _install()
    before = _judging.set(judge)
    try:
        yield
    finally:
        _judging.reset(before)


def is_of_others(record: LogRecord) -> bool:
    """Whether this was said outside of `judging`: inside it may hold the URL that a library was given."""
    return _judging.get() is None


@cache
def _install() -> None:
    # A hook stays for as long as the process lives; it is not installed where nothing asks for it.
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    if event in _EVENTS:
        judge = _judging.get()
        if judge is not None:
            judge.judge(arguments[1])


def _addresses(host: str, port: object) -> list[str]:
    """The address itself; of a name, all that it has."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        number = port if isinstance(port, int) else None
        return [str(found[4][0]) for found in socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)]


def _proxies() -> frozenset[tuple[str, object]]:
    from urllib.request import getproxies

    passed: set[tuple[str, object]] = set()
    for scheme, url in getproxies().items():
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or (443 if parts.scheme == "https" else 80)
            if scheme != "no" and parts.hostname:
                passed |= {(text, port) for text in _addresses(parts.hostname, port)}
        except (OSError, ValueError):
            continue
    return frozenset(passed)
