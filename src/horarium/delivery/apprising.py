"""Messages by the library `apprise` (extra `apprise`), which speaks to a hundred services, each named by a URL.

The library is not asynchronous: it works in a thread. What it logs may hold keys, so none of it is passed on.
"""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType

from horarium.delivery.letters import subject_of, text_of
from horarium.errors import InvalidRequest
from horarium.model import Failed, Outcome, Succeeded
from horarium.model.channels import AppriseChannel, Letter

SEND_SECONDS = 45.0
_NEEDED = "the library apprise is not installed; install horarium[apprise]"


def _library() -> ModuleType | None:
    try:
        import apprise
    except ImportError:
        return None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    return apprise


def check_service(url: str) -> None:
    """Raises InvalidRequest unless the library knows this URL."""
    apprise = _library()
    if apprise is None:
        raise InvalidRequest(f"url: {_NEEDED}", field="type")
    if not apprise.Apprise().add(url):
        raise InvalidRequest("url: apprise knows no service by such a URL", field="url")


class Apprising:
    """Sends messages by the library."""

    async def send(self, channel: AppriseChannel, letter: Letter) -> Outcome:
        """Send one message."""
        apprise = _library()
        if apprise is None:
            return Failed(_NEEDED)
        service = apprise.Apprise()
        if not service.add(channel.url):
            return Failed("apprise knows no service by the channel's URL", retryable=False)
        try:
            async with asyncio.timeout(SEND_SECONDS):
                sent = await asyncio.to_thread(service.notify, body=text_of(letter), title=subject_of(letter))
        except TimeoutError:
            return Failed(f"timed out after {SEND_SECONDS:g} s")
        return Succeeded() if sent else Failed("the service did not take the message")
