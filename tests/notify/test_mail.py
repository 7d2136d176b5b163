"""Messages by email and by apprise, taken by real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from horarium.delivery.mailing import BEYOND_ASCII, parse_smtp_url
from horarium.errors import InvalidRequest, InvalidSetting
from horarium.model import State
from tests.delivery.receiver import receiving
from tests.notify.world import SOON, Mailbox, a_job, at_rest, mail_server, running, tls_context
from tests.servers.certificate import make_certificate
from tests.servers.process import free_port
from tests.waiting import until

TO: dict[str, Any] = {"type": "email", "to": ["ann@example.org", "bob@example.org"], **SOON}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost that signs itself, and its key."""
    cert, key = make_certificate(tmp_path_factory.mktemp("tls"))
    return str(cert), str(key)


@contextmanager
def mails(**how: Any) -> Iterator[tuple[Mailbox, int]]:
    """A mail server, and its port."""
    mailbox, port = Mailbox(), free_port()
    controller = mail_server(mailbox, port, **how)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()


async def test_a_failure_is_told_by_email() -> None:
    with mails() as (mailbox, port):
        async with running(smtp_url=f"smtp://127.0.0.1:{port}?from=jobs@example.org") as scheduler:
            await scheduler.put_channel("ops", TO)
            await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
            run = await scheduler.trigger_job("nightly")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert note.state is State.COMPLETED
        (mail,) = mailbox.mails
        assert mailbox.recipients == [TO["to"]]
        assert (mail["From"], mail["To"]) == ("jobs@example.org", "ann@example.org, bob@example.org")
        assert mail["Subject"].startswith("nightly failed: RuntimeError: no such table")
        assert mail["Message-ID"].startswith(f"<{note.id}.")
        assert run.id in mail.get_content()


async def test_a_password_goes_over_tls_alone(certificate: tuple[str, str]) -> None:
    context = tls_context(*certificate)
    with mails(tls_context=context, require_starttls=True, auth_required=True) as (mailbox, port):
        url = f"smtp://me:right@localhost:{port}?ca={certificate[0]}"
        async with running(smtp_url=url) as scheduler:
            await scheduler.put_channel("ops", TO)
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.error, mailbox.encrypted, mailbox.logins) == (None, [True], [(b"me", b"right")])
    with mails() as (mailbox, port):
        async with running(smtp_url=f"smtp://me:right@localhost:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.state, mailbox.mails, mailbox.logins) == (State.FAILED, [], [])
        assert "smtp_url has a password, which is sent over TLS alone" in (note.error or "")


async def test_a_server_whose_certificate_is_not_known_gets_nothing(certificate: tuple[str, str]) -> None:
    with mails(tls_context=tls_context(*certificate)) as (mailbox, port):
        async with running(smtp_url=f"smtp://localhost:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.state, mailbox.mails) == (State.FAILED, [])
        assert "certificate" in (note.error or "")


async def test_a_refusal_for_good_is_not_tried_again() -> None:
    with mails() as (mailbox, port):
        mailbox.refuses = "550 no such user"
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
            await scheduler.trigger_job("nightly")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.state, note.attempt) == (State.FAILED, 1)
        assert "refused every recipient: 550 no such user" in (note.error or "")


async def test_a_recipient_who_is_refused_beside_others_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with mails() as (mailbox, port):
        mailbox.refuses, mailbox.refused = "550 no such user", "bob@example.org"
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert mailbox.recipients == [["ann@example.org"]]
        told = {"events": 1, "told": 1, "refused": {"bob@example.org": "550 no such user"}}
        assert msgspec.json.decode(note.result or b"") == told
        assert "channel ops: the mail server refused bob@example.org: 550 no such user" in caplog.text


async def test_recipients_who_are_refused_for_now_get_it_later_and_hold_up_nothing() -> None:
    with mails() as (mailbox, port):
        mailbox.refuses, mailbox.refused = "450 try later", "bob@example.org"
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await a_job(scheduler, "nightly", {"failed": [{"notify": "ops"}]})
            await a_job(scheduler, "hourly", {"failed": [{"notify": "ops"}]})
            untold = scheduler._operations.channels.untold
            await scheduler.trigger_job("nightly")
            await until(lambda: untold(0))
            said = "the mail server took the message, but not for bob@example.org (450 try later)"
            assert (await untold(0))["ops"].error == said
            await scheduler.trigger_job("hourly")
            await until(lambda: len(mailbox.mails) == 2)
            mailbox.refuses = None
            notes = await at_rest(scheduler, "notify", 2)
            assert not await untold(0)
        assert {note.state for note in notes} == {State.COMPLETED}
        ids = [str(mail["Message-ID"]).partition(".")[0] for mail in mailbox.mails]
        got = sorted((id, to) for id, all_to in zip(ids, mailbox.recipients, strict=True) for to in all_to)
        assert got == sorted((f"<{note.id}", to) for note in notes for to in TO["to"])


async def test_a_test_message_says_who_is_refused_for_now() -> None:
    with mails() as (mailbox, port):
        mailbox.refuses, mailbox.refused = "450 try later", "bob@example.org"
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", TO)
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.state, mailbox.recipients) == (State.FAILED, [["ann@example.org"]])
        assert note.error == "the mail server took the message, but not for bob@example.org (450 try later)"


async def test_an_address_that_the_server_can_not_write_costs_the_others_nothing() -> None:
    with mails(enable_SMTPUTF8=False) as (mailbox, port):
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", {**TO, "to": ["ann@example.org", "björn@example.org"]})
            await scheduler.put_channel("one", {**TO, "to": ["björn@example.org"]})
            await scheduler.test_channel("ops")
            (mixed,) = await at_rest(scheduler, "notify", 1)
            await scheduler.test_channel("one")
            alone = (await at_rest(scheduler, "notify", 2))[0]
        assert mailbox.recipients == [["ann@example.org"]]
        assert "SMTPUTF8" in msgspec.json.decode(mixed.result or b"")["refused"]["björn@example.org"]
        assert (alone.state, alone.error) == (State.FAILED, f"127.0.0.1: {BEYOND_ASCII}")


async def test_an_address_beyond_ascii_is_written_where_the_server_can() -> None:
    with mails() as (mailbox, port):
        async with running(smtp_url=f"smtp://127.0.0.1:{port}") as scheduler:
            await scheduler.put_channel("ops", {**TO, "to": ["björn@example.org"]})
            await scheduler.test_channel("ops")
            (note,) = await at_rest(scheduler, "notify", 1)
        assert (note.error, mailbox.recipients) == (None, [["björn@example.org"]])


async def test_without_a_mail_server_it_is_said() -> None:
    async with running() as scheduler:
        await scheduler.put_channel("ops", TO)
        await scheduler.test_channel("ops")
        (note,) = await at_rest(scheduler, "notify", 1)
        assert note.error == "no mail server is set; start the server with --smtp-url"
        with pytest.raises(InvalidRequest, match="to"):
            await scheduler.put_channel("ops", {"type": "email", "to": ["not an address"]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_what_apprise_speaks_to_is_told_by_it() -> None:
    async with running() as scheduler, receiving() as receiver:
        url = f"json://user:secret@127.0.0.1:{receiver.port}/hook"
        shown = await scheduler.put_channel("chat", {"type": "apprise", "url": url, **SOON})
        assert shown["url"] == "json://********"
        await scheduler.put_channel("chat", {**shown_fields(shown), "quiet_seconds": 30})
        await a_job(scheduler, "nightly", {"failed": [{"notify": "chat"}]})
        await scheduler.trigger_job("nightly")
        (note,) = await at_rest(scheduler, "notify", 1)
        assert note.error is None
        body = msgspec.json.decode(receiver.requests[0].body)
        assert body["title"].startswith("nightly failed")
        with pytest.raises(InvalidRequest, match="knows no service"):
            await scheduler.put_channel("chat", {"type": "apprise", "url": "nothing://x"})


def shown_fields(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name != "name"}


@pytest.mark.parametrize(
    "url",
    [
        "http://mail.example.org",
        "smtp://",
        "smtp://me:secret@mail.example.org?tls=none",
        "smtps://mail.example.org?tls=none",
        "smtp://mail.example.org?sender=x",
        "smtp://mail.example.org:99999",
    ],
)
def test_a_mail_server_that_can_not_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_smtp_url(url)
    assert "secret" not in refused.value.message
    if "tls=none" in url:
        assert "tls=none" in refused.value.message


def test_a_mail_server_is_read_from_its_url() -> None:
    server = parse_smtp_url("smtps://jobs%40example.org:p%2Fw@mail.example.org")
    assert (server.host, server.port, server.implicit_tls, server.password) == ("mail.example.org", 465, True, "p/w")
    assert server.sender == "jobs@example.org"
    assert parse_smtp_url("smtp://localhost").tls == "offered"
