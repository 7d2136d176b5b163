"""Messages by email: one connection for each, encrypted wherever that is possible.

The server is a URL: `smtps://user:password@host` speaks TLS from the first byte, `smtp://` begins in plain text and
goes over to TLS if the server offers it. A password is never sent without TLS. After `?` may stand: `from` (an
address), `tls=required` (nothing is sent without it) or `tls=none`, `ca` (a file with the certificates to trust).
"""

from __future__ import annotations

import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from importlib.util import find_spec
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct

from horarium.clock import SECOND
from horarium.delivery.letters import subject_of, text_of
from horarium.errors import InvalidSetting
from horarium.model import Failed, Outcome, Succeeded
from horarium.model.channels import EmailChannel, Letter, Taken

SEND_SECONDS = 30.0
_PORTS = {"smtp": 587, "smtps": 465}
_NEVER_AGAIN = range(500, 600)
BEYOND_ASCII = "it does not offer SMTPUTF8, without which an address is ASCII alone"


class SmtpServer(Struct, frozen=True):
    """A mail server, and how it is spoken to. `sender`: the address in `From`."""

    host: str
    port: int
    implicit_tls: bool
    tls: str = "offered"
    username: str | None = None
    password: str | None = None
    sender: str = ""
    ca: str | None = None


def parse_smtp_url(url: str) -> SmtpServer:
    """A server from its URL. Raises InvalidSetting, without the password."""
    if find_spec("aiosmtplib") is None:
        raise _refused("email needs aiosmtplib, which is not installed: pip install 'horarium[server]'")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("it is not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise _refused("it does not begin with smtp://HOST or smtps://HOST")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    sender, tls, ca = (options.pop(name, None) for name in ("from", "tls", "ca"))
    if options or tls not in (None, "required", "none") or parts.path not in ("", "/"):
        raise _refused("after ? may stand from=ADDRESS, tls=required, tls=none and ca=FILE")
    implicit, username = parts.scheme == "smtps", unquote(parts.username or "")
    if tls == "none" and implicit:
        raise _refused("smtps:// is TLS from the first byte: leave out tls=none, or begin with smtp://")
    if tls == "none" and parts.password:
        raise _refused("a password is sent over TLS alone: leave out tls=none, or the password")
    return SmtpServer(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        implicit_tls=implicit,
        tls="required" if parts.password else tls or "offered",
        username=username or None,
        password=unquote(parts.password) if parts.password else None,
        sender=sender or (username if "@" in username else "horarium@localhost"),
        ca=ca,
    )


def _refused(why: str) -> InvalidSetting:
    return InvalidSetting(f"smtp_url: {why}; an example is smtp://USER:PASSWORD@mail.example.org", field="smtp_url")


class Mailing:
    """Sends messages by one server; None: by none, and says so."""

    def __init__(self, url: str | None) -> None:
        self._server = None if url is None else parse_smtp_url(url)

    async def send(self, channel: EmailChannel, letter: Letter) -> Outcome:
        """Send one message to all recipients that are left. Where some were refused, the result is a `Taken`."""
        import aiosmtplib

        if self._server is None:
            return Failed("no mail server is set; start the server with --smtp-url")
        to = [address for address in channel.to if not letter.to or address in letter.to]
        try:
            taken = await self._send(self._server, channel, letter, to)
        except aiosmtplib.SMTPResponseException as error:
            text = f"{self._server.host} refused the message: {error.code} {error.message}"
            return Failed(text, retryable=error.code not in _NEVER_AGAIN)
        except aiosmtplib.SMTPRecipientsRefused as error:
            answers = dict.fromkeys(f"{each.code} {each.message}" for each in error.recipients)
            return Failed(
                f"{self._server.host} refused every recipient: {', '.join(answers)}",
                retryable=any(each.code not in _NEVER_AGAIN for each in error.recipients),
            )
        except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
            return Failed(f"{self._server.host}:{self._server.port}: {_words(error, self._server)}")
        if to and len(taken.refused) == len(to):
            return Failed(f"{self._server.host}: {BEYOND_ASCII}", retryable=False)
        return Succeeded(msgspec.json.encode(taken) if taken.refused else None)

    async def _send(self, server: SmtpServer, channel: EmailChannel, letter: Letter, to: list[str]) -> Taken:
        import aiosmtplib

        async with aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            username=server.username,
            password=server.password,
            use_tls=server.implicit_tls,
            start_tls=None if server.implicit_tls else {"required": True, "none": False}.get(server.tls),
            tls_context=None if server.tls == "none" else ssl.create_default_context(cafile=server.ca),
            timeout=SEND_SECONDS,
        ) as client:
            able = to
            if not all(map(str.isascii, to)):
                await client.ehlo()
                able = [address for address in to if address.isascii() or client.supports_extension("smtputf8")]
            refused = {address: BEYOND_ASCII for address in to if address not in able}
            if not able:
                return Taken(refused)
            answers, _ = await client.send_message(mail_of(letter, server.sender, channel), recipients=able)
        told = {address: f"{answer.code} {answer.message}" for address, answer in answers.items()}
        again = tuple(address for address, answer in answers.items() if answer.code not in _NEVER_AGAIN)
        return Taken(refused | told, again)


def _words(error: Exception, server: SmtpServer) -> str:
    """The error, and the setting that led to it."""
    if "STARTTLS" in str(error) and server.tls == "required":
        asks = "smtp_url has a password, which is sent over TLS alone" if server.password else "smtp_url asks for TLS"
        return f"it does not offer STARTTLS, and {asks}; where it speaks TLS from the first byte, give smtps://"
    return str(error) or type(error).__name__


def mail_of(letter: Letter, sender: str, channel: EmailChannel) -> EmailMessage:
    """The message as it is sent. Its id is the letter's, so that a repeated one can be known."""
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(channel.to)
    mail["Subject"] = subject_of(letter)
    mail["Date"] = formatdate(letter.at / SECOND)
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2]).replace("<", f"<{letter.id}.", 1)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text_of(letter, channel.template))
    return mail
