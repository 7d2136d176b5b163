"""Under which names this server may be addressed.

A page can make its own host name resolve to this server's address (DNS rebinding); the browser then takes this server
for the page's own and sends all that the page asks. Such a request still carries the page's host name in `Host`, so a
server that answers only to its own names is out of reach. An address can't be rebound: a page that was loaded from an
address came from the server at that address. Only probes are exempt (`/healthz`, `/readyz`): they ask by the name of a
service, and without a key learn nothing but a status.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from msgspec import Struct

Address = IPv4Address | IPv6Address


class Hosts(Struct, frozen=True):
    """`names`: allowed host names and addresses, lower case; `*.NAME` allows every name below NAME. `addresses`:
    whether any literal address is allowed (a server beyond loopback has many), or only loopback ones."""

    names: frozenset[str] = frozenset()
    addresses: bool = False

    def allow(self, authority: str) -> bool:
        """Whether a request with this `Host` header is for this server. The port does not matter."""
        host = host_of(authority)
        if host is None:
            return False
        address = address_of(host)
        if address is not None:
            return self.addresses or address.is_loopback or any(address_of(name) == address for name in self.names)
        return host == "localhost" or host.endswith(".localhost") or self._named(host)

    def _named(self, host: str) -> bool:
        return host in self.names or any(f"*.{parent}" in self.names for parent in _parents(host))


def allowed_hosts(names: Iterable[str], *, addresses: bool) -> Hosts:
    """The hosts of a server that is known by these names."""
    found = (host_of(name) or name.lower() for name in names)
    return Hosts(frozenset(found), addresses)


def host_of(authority: str) -> str | None:
    """The host of `host`, `host:port` or `[address]:port`, lower case, without a final dot; None for anything else."""
    if not authority or any(character in authority for character in "@/?#\\ \t,"):
        return None
    if "]" in authority and authority.rpartition("]")[2][:1] not in ("", ":"):
        return None
    try:
        parts = urlsplit(f"//[{authority}]" if _is_bare_ipv6(authority) else f"//{authority}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    return host.lower().removesuffix(".") or None if host else None


def address_of(host: str) -> Address | None:
    """The address that a host is, or None for a name. An IPv4 address within an IPv6 one (RFC 4291, section 2.5.5.2)
    is that IPv4 address."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_bare_ipv6(text: str) -> bool:
    return text.count(":") > 1 and not text.startswith("[")


def _parents(name: str) -> Iterable[str]:
    """Every name above this one."""
    while name := name.partition(".")[2]:
        yield name
