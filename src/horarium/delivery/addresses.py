"""Which addresses a request may go to, and the guard that sees to it.

A URL is read once, here: the host is brought into the form that a resolver would make of it, and the request is sent to
that form, so no second reader can understand it differently. A literal address is judged when a job is defined; a name
is resolved only at delivery, every one of its addresses is judged, and the socket is opened for the very address that
was judged (`open_socket` sees the address of every connection, on every path). No answer of a name server may be kept
for a later connection. Source of the blocks: the IANA special-purpose address registries (RFC 6890).
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from horarium.errors import InvalidJob
from horarium.model import URL_CHARS_MAX

Address = IPv4Address | IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host name and port -> every address that the name has, as text."""
AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives them: family, type, protocol, name, address."""

HOST_CHARS_MAX = 253
LABEL_CHARS_MAX = 63
LOOKUP_THREADS = 16
SETTING = "--allow-private-targets"
KEPT, KEPT_CHARS_MAX = 2_048, 500
"""How many URLs that were read are kept, and how long they may be."""


class Reach(StrEnum):
    """Whether requests may go to an address: always; only where private targets are allowed; never."""

    PUBLIC = "public"
    PRIVATE = "private"
    NEVER = "never"


def _blocks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(block) for block in text.split())


# Metadata services of clouds, and addresses that name no single machine.
_NEVER = _blocks("""
    0.0.0.0/8 100.100.100.200/32 168.63.129.16/32 169.254.0.0/16 192.0.0.192/32 224.0.0.0/4 240.0.0.0/4
    ::/128 fd00:ec2::254/128 fe80::/10 ff00::/8
""")
_PRIVATE = _blocks("""
    10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16
    198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    2001::/23 2001:db8::/32 2002::/16 3fff::/20
""")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# IPv6 ranges that carry an IPv4 address, and how many bits are to the right of it.
_CARRIERS = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
_LOOPBACK = IPv6Address("::1")


@lru_cache(maxsize=1024)
def reach(address: Address) -> Reach:
    """Who may be sent to this address. One that carries another is never more open than what it carries."""
    if _within(address, _NEVER):
        return Reach.NEVER
    carried = _carried(address)
    if carried is not None:
        return Reach.NEVER if reach(carried) is Reach.NEVER else Reach.PRIVATE
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return Reach.PRIVATE
    return Reach.PUBLIC if address.is_global and not _within(address, _PRIVATE) else Reach.PRIVATE


def _within(address: Address, blocks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in block for block in blocks)


def _carried(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address) or address == _LOOPBACK:
        return None
    for block, shift in _CARRIERS:
        if address in block:
            return IPv4Address(int(address) >> shift & 0xFFFF_FFFF)
    return None


class RefusedAddress(OSError):
    """How a refusal travels through the HTTP client, which passes on nothing else. It never leaves `delivery`."""


def refusal(address: Address, host: str, allow_private: bool) -> str | None:
    """Why the address may not be sent to; None: it may."""
    found = reach(address)
    if found is Reach.PUBLIC or (found is Reach.PRIVATE and allow_private):
        return None
    named = f"{address}" if host == str(address) else f"{address} (of {host})"
    if found is Reach.NEVER:
        return f"{named} is a link-local, multicast, reserved or metadata address; requests are never sent there"
    return f"{named} is not a public address; start the server with {SETTING} if it is meant"


# ---- reading a URL ----------------------------------------------------------------------------------------------


class Endpoint(Struct, frozen=True):
    """A URL that was read. `host` is lower-case ASCII without brackets or a final dot; `path` is everything after the
    authority, with placeholders; `literal` is the address if the host is one. `authority` always has the port, the
    header Host only one that is not the scheme's."""

    scheme: str
    host: str
    port: int
    path: str
    literal: Address | None
    authority: str
    origin: str
    host_header: str


_PORTS = {"http": 80, "https": 443}
_DOTS = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_LABEL = re.compile(r"[a-z0-9_-]+", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)


def check_url(url: str, allow_private: bool, *, field: str = "target.url") -> None:
    """Raise InvalidJob unless requests may be sent to this URL, as far as can be said without resolving a name."""
    endpoint = parse_url(url, field=field)
    _check_host(endpoint.host, endpoint.literal, allow_private, field)


def check_host(host: str, allow_private: bool, *, field: str) -> None:
    """The same for a host alone. One that can't be read is for others to judge."""
    try:
        bare = host.strip("[]")
        name, literal = _read_host(urlsplit(f"//[{bare}]" if ":" in bare else f"//{bare}"))
    except ValueError:
        return
    _check_host(name, literal, allow_private, field)


def _check_host(host: str, literal: Address | None, allow_private: bool, field: str) -> None:
    if not allow_private and (host == "localhost" or host.endswith(".localhost")):
        raise InvalidJob(
            f"{field}: {host} is this machine; start the server with {SETTING} if it is meant", field=field
        )
    if literal is not None:
        reason = refusal(literal, host, allow_private)
        if reason is not None:
            raise InvalidJob(f"{field}: {reason}", field=field)


def parse_url(url: str, *, field: str = "target.url") -> Endpoint:
    """Read an absolute http or https URL. Raises InvalidJob; the message never repeats the URL, which may hold
    secrets."""
    try:
        return _read_lately(url) if len(url) <= KEPT_CHARS_MAX else _read(url)
    except ValueError as error:
        raise InvalidJob(f"{field}: {error}", field=field) from None


def _read(url: str) -> Endpoint:
    _check_characters(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(
            "the host between brackets is no IPv6 address; give one such as http://[2001:db8::1]/"
        ) from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"the scheme is {parts.scheme[:20]!r}; give a URL that begins with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("user and password can't be in the URL; send them in the header Authorization")
    host, literal = _read_host(parts)
    path = url.split("://", 1)[1][len(parts.netloc) :]
    if not path.startswith("/"):
        path = "/" + path
    port = _read_port(parts)
    name = f"[{host}]" if ":" in host else host
    authority = f"{name}:{port}"
    host_header = name if port == _PORTS[parts.scheme] else authority
    return Endpoint(parts.scheme, host, port, path, literal, authority, f"{parts.scheme}://{authority}", host_header)


_read_lately = lru_cache(maxsize=KEPT)(_read)


def _check_characters(url: str) -> None:
    if len(url) > URL_CHARS_MAX:
        raise ValueError(f"the URL has {len(url)} characters; at most {URL_CHARS_MAX} are possible")
    if "#" in url:
        raise ValueError("the URL has a fragment (#...), which is never sent; leave it out, or write %23")
    for character in url:
        if character.isspace() or character == "\\" or _is_control(character):
            raise ValueError(
                f"the URL holds the character U+{ord(character):04X}; white space, control characters and "
                "backslashes can't be in it: percent-encode them"
            )


def _is_control(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    import unicodedata  # large, and of use only to text that is not ASCII

    return unicodedata.category(character) in ("Cc", "Cf", "Cs")


def _read_port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is None:
        return _PORTS[parts.scheme]
    if port == 0:
        raise ValueError("the port can't be read; give a number from 1 to 65535")
    return port


def _read_host(parts: SplitResult) -> tuple[str, Address | None]:
    if not parts.hostname:
        raise ValueError("the URL has no host; give one such as https://example.com/path")
    if parts.netloc.startswith("["):
        literal: Address = _read_ipv6(parts.hostname)
        return str(literal), literal
    host = _canonical(parts.hostname)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        literal = _read_ipv4(host)
        return str(literal), literal
    return host, None


def _plain(text: str) -> str:
    """With the letters and dots that look like this, NFKC."""
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFKC", text.translate(_DOTS)).translate(_DOTS)


def _canonical(text: str) -> str:
    host = _plain(text).lower().removesuffix(".")
    if not host.isascii() and len(host) <= HOST_CHARS_MAX:
        host = _to_ascii(host)
    labels = host.split(".")
    if len(host) > HOST_CHARS_MAX or not all(
        len(label) <= LABEL_CHARS_MAX and _LABEL.fullmatch(label) for label in labels
    ):
        raise ValueError(
            "the host can't be read; give a name of letters, digits, hyphens and dots, or an address "
            "(placeholders are allowed only after the host)"
        )
    return host


def _to_ascii(host: str) -> str:
    # Imported only for names that need it.
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise ValueError("the host is not a valid international domain name") from None


def _read_ipv6(text: str) -> IPv6Address:
    try:
        if "%" in text:
            raise ValueError
        return IPv6Address(text)
    except ValueError:
        raise ValueError("what is in brackets is not an IPv6 address (zone names are not possible)") from None


def _read_ipv4(host: str) -> IPv4Address:
    """An IPv4 address in any form that `inet_aton` takes: one to four numbers, each decimal, octal or hexadecimal, the
    last one filling the bytes that remain (WHATWG URL, "IPv4 parser")."""
    numbers = [_read_number(part) for part in host.split(".")]
    *leading, last = numbers
    if len(numbers) > 4 or any(number > 255 for number in leading) or last >= 256 ** (5 - len(numbers)):
        raise ValueError("the host ends in a number but is not an IPv4 address")
    value = last
    for position, number in enumerate(leading):
        value += number << (24 - 8 * position)
    return IPv4Address(value)


def _read_number(text: str) -> int:
    try:
        if not _NUMBER.fullmatch(text):
            raise ValueError
        if text.startswith("0x"):
            return int(text[2:] or "0", 16)
        return int(text, 8 if text.startswith("0") else 10)
    except ValueError:
        raise ValueError("the host ends in a number but is not an IPv4 address") from None


# ---- the guard --------------------------------------------------------------------------------------------------


class Guard:
    """Resolves names and opens sockets for the HTTP client, refusing addresses that may not be sent to."""

    def __init__(self, *, allow_private: bool, lookup: Lookup | None = None) -> None:
        self._allow_private = allow_private
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "horarium-dns") if lookup is None else None
        self._lookup = lookup or self._system_lookup

    async def resolve(self, endpoint: Endpoint) -> list[AddressInfo]:
        """Every address of the endpoint's host. Raises RefusedAddress if any of them is refused."""
        if endpoint.literal is not None:
            addresses: Sequence[Address] = [endpoint.literal]
        else:
            addresses = [ip_address(text) for text in await self._lookup(endpoint.host, endpoint.port)]
        for address in addresses:
            self._judge(address, endpoint.host)
        if not addresses:
            raise OSError(None, "the name has no address")
        return [_address_info(address, endpoint.port) for address in addresses]

    def open_socket(self, addr_info: AddressInfo) -> socket.socket:
        """A socket for (family, type, protocol, name, address). The last check: it sees every address, literals and
        names alike, at the moment of connecting."""
        family, kind, protocol, _, sockaddr = addr_info
        self._judge(ip_address(sockaddr[0]), sockaddr[0])
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _judge(self, address: Address, host: str) -> None:
        reason = refusal(address, host, self._allow_private)
        if reason is not None:
            raise RefusedAddress(None, reason)

    async def _system_lookup(self, host: str, port: int) -> Sequence[str]:
        # Threads of our own: a name server that hangs must not hold up other work in the loop's threads.
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _address_info(address: Address, port: int) -> AddressInfo:
    if address.version == 6:
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port))
