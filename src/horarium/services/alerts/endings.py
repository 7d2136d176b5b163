"""Tells, before it happens, that a key or the certificate of this server ends: in the log, and to every channel whose
`system` is true.

Two weeks before, or where a key lasts for less than eight, when a quarter of its time is left. A message has a unique
key, made of the name and of the instant of the end, so any number of nodes may look.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from horarium.access.keys import Keys
from horarium.clock import DAY, HOUR, Instant, to_instant, to_text
from horarium.operations.bounds.listing import pages_of
from horarium.operations.channels import ChannelOperations
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX
from horarium.services.alerts.troubles import Trouble, tell_system
from horarium.services.loop.service import Paced, Wake

LOOK_EVERY = HOUR
WARNED_BEFORE = 14 * DAY
SAY_EVERY = DAY
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_VERSION = 0xA0

log = logging.getLogger("horarium")


class Endings(Paced):
    """Looks once an hour. `certificate`: the file with that of this server, None: it has none."""

    name = "endings"
    every = LOOK_EVERY

    def __init__(self, context: Context, channels: ChannelOperations, certificate: str | None) -> None:
        self.wake = Wake()
        self._context, self._channels, self._certificate = context, channels, certificate
        self._said: dict[tuple[str, Instant], Instant] = {}

    async def work(self, now: Instant) -> None:
        said = {}
        async for each in self._endings(now):
            said_at = self._said.get((each.name, each.at))
            if said_at is None or not said_at <= now < said_at + SAY_EVERY:
                await tell_system(self._context, self._channels, each)
                log.warning("%s", each.text)
                self._said[each.name, each.at] = said_at = now
            said[each.name, each.at] = said_at
        self._said = said

    async def _endings(self, now: Instant) -> AsyncIterator[Trouble]:
        keys = Keys(self._context.store, self._context.clock)
        async for page in pages_of(lambda after: keys.page(after, PAGE_MAX)):
            for key in page:
                if key.expires_at is not None and _is_near(key.created_at, key.expires_at, now):
                    text = f"the key {key.name} ends at {to_text(key.expires_at)}"
                    yield Trouble("key_ends", key.name, key.expires_at, text)
        ends_at = None if self._certificate is None else await asyncio.to_thread(certificate_ends_at, self._certificate)
        if ends_at is not None and now > ends_at - WARNED_BEFORE:
            file = Path(self._certificate or "").name
            word = "ended" if ends_at <= now else "ends"
            text = f"the certificate {file} {word} at {to_text(ends_at)}"
            yield Trouble("certificate_ends", file, ends_at, text)


def _is_near(begins_at: Instant, ends_at: Instant, now: Instant) -> bool:
    return ends_at - min(WARNED_BEFORE, (ends_at - begins_at) // 4) < now < ends_at


# ---- certificates ------------------------------------------------------------------------------------------------


def certificate_ends_at(file: str) -> Instant | None:
    """When the first certificate of a PEM file ends (X.509: `notAfter`); None: that can't be read."""
    try:
        text = Path(file).read_text()
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        (certificate,) = _parts(ssl.PEM_cert_to_DER_cert(text[begin:end]))
        fields = [part for part in _parts(_parts(certificate[1])[0][1]) if part[0] != _VERSION]
        tag, ends = _parts(fields[3][1])[1]  # serial number, algorithm, issuer, validity
        return to_instant(datetime.strptime(ends.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC))
    except (OSError, ValueError, LookupError):
        return None


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """The tag and the content of each value in a row."""
    found = []
    while der:
        size, begin = der[1], 2
        if size & 0x80:
            begin += size & 0x7F
            size = int.from_bytes(der[2:begin])
        found.append((der[0], der[begin : begin + size]))
        der = der[begin + size :]
    return found
