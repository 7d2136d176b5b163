"""Whose request it is that a proxy passes on: the last address on its way that is no proxy of ours.

Each proxy adds the address that it was asked from at the end of `X-Forwarded-For` or `Forwarded` (RFC 7239). All
before the last foreign one was written by the client itself, and counts for nothing. Where both headers are
there and differ, one of them is the client's own, so neither is believed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from horarium.api.hosts import Address, address_of, host_of

Network = IPv4Network | IPv6Network
App = Callable[[Any, Any, Any], Awaitable[None]]
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;\s]+)', re.IGNORECASE)


class BehindProxies:
    """An ASGI application whose requests come from who asked the proxies. `trusted`: their addresses and networks."""

    def __init__(self, app: App, trusted: Sequence[str]) -> None:
        self._app = app
        self._trusted = [ip_network(each, strict=False) for each in trusted]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        if client:
            found = client_of(client[0], scope["headers"], self._trusted)
            if found != client[0]:
                scope = {**scope, "client": (found, 0)}
        await self._app(scope, receive, send)


def client_of(peer: str, headers: Sequence[tuple[bytes, bytes]], trusted: Sequence[Network]) -> str:
    """Who asks, where `peer` opened the connection."""
    if not _is_trusted(_address(peer), trusted):
        return peer
    listed, forwarded = _values(headers, b"x-forwarded-for"), _values(headers, b"forwarded")
    ways = [_walk(peer, way, trusted) for way in (listed, [_said_for(each) for each in forwarded]) if way]
    return ways[0] if ways and all(way == ways[0] for way in ways) else peer


def _walk(peer: str, way: Sequence[str], trusted: Sequence[Network]) -> str:
    """The last address that is no proxy's, or the last that is an address at all."""
    at = peer
    for each in reversed(way):
        address = _address(host_of(each) or "")
        if address is None:
            break
        at = str(address)
        if not _is_trusted(address, trusted):
            break
    return at


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    text = b",".join(value for each, value in headers if each == name).decode("latin-1")
    return [part.strip() for part in text.split(",")] if text else []


def _said_for(element: str) -> str:
    found = _FOR.search(element)
    return found[1].strip('"') if found else ""


def _address(text: str) -> Address | None:
    found = address_of(text)
    return getattr(found, "ipv4_mapped", None) or found


def _is_trusted(address: Address | None, trusted: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in trusted)
