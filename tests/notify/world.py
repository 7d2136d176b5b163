"""A running scheduler, and real servers that are told: of HTTP (`tests.delivery.receiver`) and of mail."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import msgspec
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from horarium import Scheduler, every
from horarium.library.values import Run
from tests.delivery.receiver import Receiver
from tests.waiting import until

FAR = every("1000h")
"""A trigger for jobs whose runs are asked for by hand."""
SOON = {"group_seconds": 0.3}


@asynccontextmanager
async def running(flips: Callable[[Any], None] | None = None, **options: Any) -> AsyncIterator[Scheduler]:
    """A scheduler with the handlers `fails`, `works`, and the one that is given."""
    scheduler = Scheduler("memory://", allow_private_targets=True, **options)

    @scheduler.handler("fails")
    async def fails(run: Any) -> None:
        raise RuntimeError("no such table")

    @scheduler.handler("works")
    async def works(run: Any) -> dict[str, int]:
        return {"rows": 3}

    if flips is not None:
        scheduler.handler("flips")(flips)
    async with scheduler:
        await scheduler.start()
        yield scheduler


async def a_job(scheduler: Scheduler, name: str, on: dict[str, Any], handler: str = "fails", **more: Any) -> None:
    """A job of one attempt that is run by hand."""
    await scheduler.add_job(name, FAR, handler=handler, on=on, retry={"attempts_max": 1}, **more)


def messages(receiver: Receiver) -> list[dict[str, Any]]:
    """The bodies of what came in."""
    return [msgspec.json.decode(request.body) for request in receiver.requests]


def events(receiver: Receiver) -> list[tuple[str, str | None, int]]:
    """What was told: event, job and count."""
    found = [event for message in messages(receiver) for event in message["data"]["events"]]
    return [(event["event"], event["job"], event["count"]) for event in found]


async def runs(scheduler: Scheduler, queue: str) -> list[Run]:
    """All runs of a queue."""
    return list((await scheduler.list_runs(queue=queue, limit=200)).items)


async def at_rest(scheduler: Scheduler, queue: str, count: int) -> list[Run]:
    """The runs of a queue, once there are so many and all have ended."""
    found: list[Run] = []

    async def ended() -> bool:
        found[:] = await runs(scheduler, queue)
        return len(found) >= count and all(run.finished for run in found)

    await until(ended)
    return found


class Mailbox:
    """What a mail server took. `refuses`: the answer to every recipient, or to `refused` alone."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.encrypted: list[bool] = []
        self.recipients: list[list[str]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.refuses: str | None = None
        self.refused: str | None = None

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if self.refuses is not None and self.refused in (None, address):
            return self.refuses
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        self.recipients.append(envelope.rcpt_tos)
        self.encrypted.append(session.ssl is not None)
        return "250 OK"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right")


def mail_server(mailbox: Mailbox, port: int, **how: Any) -> Controller:
    """A real mail server on this port, not started."""
    return Controller(mailbox, hostname="127.0.0.1", port=port, authenticator=mailbox.authenticate, **how)


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context
