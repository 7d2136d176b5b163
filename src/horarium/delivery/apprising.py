"""Messages by the library `apprise` (extra `apprise`), which speaks to a hundred services, each named by a URL.

The library is not asynchronous: it works in a thread. What it logs may hold keys, so none of it is passed on. It opens
its own connections, so these are judged where they are opened (`judged`), by the rule for webhooks.
"""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType
from typing import Any

from horarium.delivery.addresses import check_host
from horarium.delivery.judged import Judge, is_of_others, judging
from horarium.delivery.letters import subject_of, text_of
from horarium.errors import InvalidJob, InvalidRequest
from horarium.model import Failed, Outcome, Succeeded
from horarium.model.channels import Letter

SEND_SECONDS = 45.0
_NEEDED = "the library apprise is not installed; install horarium[apprise]"


def _library() -> ModuleType | None:
    try:
        import apprise
    except ImportError:
        return None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3.connectionpool").addFilter(is_of_others)
    return apprise


def check_service(url: str, allow_private: bool) -> None:
    """Raises InvalidRequest unless the library knows this URL, and its host may be sent to, as far as can be said
    without resolving a name."""
    apprise = _library()
    if apprise is None:
        raise InvalidRequest(f"url: {_NEEDED}", field="type")
    service = apprise.Apprise()
    if not service.add(url):
        raise InvalidRequest("url: apprise knows no service by such a URL", field="url")
    for each in service:
        if _has_host(each):
            try:
                check_host(str(each.host), allow_private, field="url")
            except InvalidJob as error:
                raise InvalidRequest(error.message, field="url") from None


def _has_host(service: Any) -> bool:
    """Whether the URLs of this service name a host; in others that part of the URL is a key or a number."""
    return any("{host}" in template for template in service.templates) and bool(service.host)


class Apprising:
    """Sends messages by the library. `allow_private`: whether to addresses that are not public, too."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def send(self, url: str, letter: Letter, template: str | None = None) -> Outcome:
        apprise = _library()
        if apprise is None:
            return Failed(_NEEDED)
        service = apprise.Apprise()
        if not service.add(url):
            return Failed("apprise knows no service by the channel's URL", retryable=False)
        try:
            async with asyncio.timeout(SEND_SECONDS):
                return await asyncio.to_thread(_notify, service, letter, template, self._allow_private)
        except TimeoutError:
            return Failed(f"timed out after {SEND_SECONDS:g} s")


def _notify(service: Any, letter: Letter, template: str | None, allow_private: bool) -> Outcome:
    judge = Judge(allow_private=allow_private)
    with judging(judge):
        sent = service.notify(body=text_of(letter, template), title=subject_of(letter))
    if sent:
        return Succeeded()
    if judge.refused is not None:
        return Failed(judge.refused, retryable=False)
    return Failed("the service did not take the message")
