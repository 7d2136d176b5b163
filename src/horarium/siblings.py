"""Messages and questions between the processes of one server, where `--processes` makes it several.

State that must be true is in the store. This is for what a process knows alone and a caller expects of the whole
server, since the next request may reach another process: figures, failed sign-ins, revoked keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

Hear = Callable[[bytes], bytes | Awaitable[bytes]]
"""Takes a question, gives the answer, at once or later."""


class Siblings(Protocol):
    """The other processes of this server. None of this raises; one that does not answer in time is left out."""

    def hear(self, topic: str, answer: Hear) -> None:
        """Have `answer` called whenever another process says something on this topic."""

    def tell(self, topic: str, said: bytes) -> None:
        """Say something, and go on."""

    async def ask(self, topic: str, said: bytes = b"") -> list[bytes]:
        """Say something, and wait for what each of them answers."""


class Alone:
    """A process that has no siblings."""

    def hear(self, topic: str, answer: Hear) -> None:
        """There is no one to say anything."""

    def tell(self, topic: str, said: bytes) -> None:
        """No one hears it."""

    async def ask(self, topic: str, said: bytes = b"") -> list[bytes]:
        """No one answers."""
        return []


ALONE = Alone()
