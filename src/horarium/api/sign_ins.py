"""Sign-ins that fail: logged, counted, and slowed down for the address that they come from.

Each failure is a debt of its address, and debts fade by one a second. An address that owes more than a few waits before
its next short key is looked at, a little longer each time; a right one would wait as long as a wrong one, so waiting
says nothing. Proofs that can't be guessed (named keys, tokens, long keys) neither wait nor owe. A key that this address
has signed in with before is accepted at once: a client that guesses behind the same proxy must not keep others out. No
key is ever logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Network
from typing import TypeVar

from msgspec import Struct

from horarium.api.hosts import address_of
from horarium.api.problems import TooManyFailures
from horarium.clock import Clock
from horarium.siblings import ALONE, Siblings

FREE_FAILURES = 30
"""Failures in a row that cost an address nothing."""
FADE_PER_SECOND = 1.0
WAIT_SECONDS_EACH = 0.25
WAIT_SECONDS_MAX = 5.0
WAITING_MAX = 20
"""Requests of one address that wait; a further one is refused with 429."""
ADDRESSES_MAX = 10_000
KNOWN_MAX = 2_000
LOG_AGAIN_SECONDS = 60.0
"""At most one line for an address in this time, with the number of failures since the last."""

FAILED, SUCCEEDED = "sign-in-failed", "sign-in-succeeded"
"""Messages to siblings: an address that owes more; a key that an address has."""
DIGEST_BYTES = 32

K = TypeVar("K")
V = TypeVar("V")
log = logging.getLogger("horarium.api")


class Debtor(Struct):
    """One address. `unlogged`: failures since its last line in the log."""

    debt: float = 0.0
    at: float = 0.0
    logged_at: float | None = None
    unlogged: int = 0


class SignIns:
    """The record of asking addresses, for one application."""

    def __init__(
        self, clock: Clock, pause: Callable[[float], Awaitable[None]] = asyncio.sleep, siblings: Siblings = ALONE
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._waiting: Counter[str] = Counter()
        self._debtors: dict[str, Debtor] = {}
        self._known: dict[tuple[str, bytes], None] = {}
        self._siblings = siblings
        siblings.hear(FAILED, self._failed_elsewhere)
        siblings.hear(SUCCEEDED, self._succeeded_elsewhere)

    async def slow_down(self, address: str, digest: bytes) -> None:
        """Wait as long as the failures of this address ask for. Raises TooManyFailures where too many wait already."""
        seconds = 0.0 if (address, digest) in self._known else self.wait_seconds(address)
        if seconds <= 0:
            return
        origin = origin_of(address)
        if self._waiting[origin] >= WAITING_MAX:
            raise TooManyFailures("too many wrong keys came from this address; try again later")
        self._waiting[origin] += 1
        try:
            await self._pause(seconds)
        finally:
            self._waiting[origin] -= 1
            self._waiting += Counter()  # without those of whom none waits

    def wait_seconds(self, address: str) -> float:
        """How long the next key from this address waits."""
        debtor = self._debtors.get(origin_of(address))
        if debtor is None:
            return 0.0
        self._fade(debtor)
        return min(max(debtor.debt - FREE_FAILURES, 0.0) * WAIT_SECONDS_EACH, WAIT_SECONDS_MAX)

    def succeeded(self, address: str, digest: bytes) -> None:
        """This address has this key."""
        if (address, digest) not in self._known:
            _keep(self._known, (address, digest), None, KNOWN_MAX)
            self._siblings.tell(SUCCEEDED, digest + address.encode())

    def _succeeded_elsewhere(self, said: bytes) -> bytes:
        digest, address = said[:DIGEST_BYTES], said[DIGEST_BYTES:].decode()
        if (address, digest) not in self._known:
            _keep(self._known, (address, digest), None, KNOWN_MAX)
        return b""

    def failed(self, address: str, request: str, why: str, *, guess: bool) -> None:
        """A sign-in failed. `guess`: a key was sent; a request without one owes nothing."""
        debtor = self._debtor(address)
        if guess:
            debtor.debt += 1
            self._siblings.tell(FAILED, address.encode())
        self._log(debtor, f"{address}: {request}: {why}")

    def _failed_elsewhere(self, address: bytes) -> bytes:
        self._debtor(address.decode()).debt += 1
        return b""

    def _debtor(self, address: str) -> Debtor:
        debtor = self._debtors.get(origin_of(address))
        if debtor is None:
            debtor = Debtor(at=self._clock.monotonic())
            _keep(self._debtors, origin_of(address), debtor, ADDRESSES_MAX)
        self._fade(debtor)
        return debtor

    def _fade(self, debtor: Debtor) -> None:
        now = self._clock.monotonic()
        debtor.debt = max(debtor.debt - (now - debtor.at) * FADE_PER_SECOND, 0.0)
        debtor.at = now

    def _log(self, debtor: Debtor, line: str) -> None:
        if debtor.logged_at is not None and debtor.at - debtor.logged_at < LOG_AGAIN_SECONDS:
            debtor.unlogged += 1
            return
        more = f" ({debtor.unlogged} more since the last line about this address)" if debtor.unlogged else ""
        log.warning("sign-in refused: %s%s", line, more)
        debtor.logged_at, debtor.unlogged = debtor.at, 0


def origin_of(address: str) -> str:
    """Who an address counts as: an IPv6 host owns the whole of its /64."""
    found = address_of(address)
    if found is None or found.version == 4:
        return address
    return str(IPv6Network((int(found) >> 64 << 64, 64)))


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep it, and evict the oldest one where there are too many."""
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
