"""Where messages by apprise may go: the rule for webhooks, held where the library opens its connections."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from horarium.clock import SECOND
from horarium.delivery.apprising import Apprising, check_service
from horarium.delivery.judged import Judge, judging
from horarium.errors import InvalidRequest
from horarium.model import Failed, Outcome, Succeeded
from horarium.model.channels import Letter, Told
from tests.delivery.receiver import receiving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

AT = 1_800_000_000 * SECOND
LETTER = Letter("1", "chat", AT, (Told("failed", "nightly", "r", None, "2027-01-15T08:00:00Z", "nightly failed"),))
METADATA = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data\r\nContent-Length: 0\r\n\r\n"


async def send(url: str, *, allow_private: bool = False) -> Outcome:
    return await Apprising(allow_private=allow_private).send(url, LETTER)


@pytest.mark.parametrize(
    "url",
    [
        "json://127.0.0.1/hook", "json://user:secret@10.1.2.3:8080/hook", "jsons://[::1]/hook", "xml://127.1/",
        "gotify://192.168.0.1/token", "ntfy://localhost/topic", "json://0x7f000001/", "json://jobs.localhost/",
        "json://169.254.169.254/latest",
    ],
)  # fmt: skip
def test_a_private_address_is_refused_when_the_channel_is_defined(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_service(url, allow_private=False)
    assert refused.value.field == "url"
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("url", ["json://example.org/hook", "ntfy://topic", "tgram://123456789:abcdefg_hijklmnop/1"])
def test_what_is_no_private_address_may_be_defined(url: str) -> None:
    check_service(url, allow_private=False)


def test_where_private_addresses_are_allowed_metadata_services_are_not() -> None:
    check_service("json://127.0.0.1/hook", allow_private=True)
    with pytest.raises(InvalidRequest, match="never sent there"):
        check_service("json://169.254.169.254/latest", allow_private=True)


async def test_a_private_address_is_not_sent_to_and_no_log_line_has_the_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with receiving() as receiver:
        url = f"json://127.0.0.1:{receiver.port}/hook"
        refused = await send(url)
        assert isinstance(refused, Failed)
        assert (refused.retryable, receiver.connections) == (False, 0)
        assert "127.0.0.1 is not a public address" in refused.error
        assert isinstance(await send(url, allow_private=True), Succeeded)
        assert receiver.connections == 1
    assert "hook" not in caplog.text


async def test_a_name_is_judged_by_the_address_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the name server said before."""

    def lies(host: str, port: Any, *more: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with receiving() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", lies)
        refused = await send(f"json://example.org:{receiver.port}/hook")
        assert isinstance(refused, Failed)
        assert "127.0.0.1 is not a public address" in refused.error
        assert receiver.connections == 0


async def test_a_redirect_is_judged_too() -> None:
    async with receiving(METADATA) as receiver:
        refused = await send(f"json://127.0.0.1:{receiver.port}/hook", allow_private=True)
        assert isinstance(refused, Failed)
        assert refused.error.startswith("169.254.169.254 is a link-local")
        assert receiver.connections == 1


async def test_datagrams_are_judged() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.setblocking(False)
        port = log.getsockname()[1]
        assert isinstance(await send(f"rsyslog://127.0.0.1:{port}/local7", allow_private=True), Succeeded)
        assert b"nightly failed" in log.recv(2000)
        with (
            judging(Judge(allow_private=False)),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            pytest.raises(OSError, match="not a public address"),
        ):
            sender.sendto(b"lines", ("localhost", port))
        with pytest.raises(BlockingIOError):
            log.recv(2000)


async def test_a_proxy_of_the_environment_may_be_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert isinstance(await send("json://example.org/hook"), Succeeded)
        (request,) = proxy.requests
        assert request.line.startswith("POST http://example.org/hook")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        judging(Judge(allow_private=False)),
        pytest.raises(OSError, match="not a public address"),
    ):
        socket.create_connection(other.getsockname())


def test_others_are_not_judged(tmp_path: Path) -> None:
    """What is done beside it connects as it likes; sockets of the machine count as private."""
    judge = Judge(allow_private=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with judging(judge):
            with pytest.raises(OSError, match="not a public address"):
                socket.create_connection(address)
            with socket.socket(socket.AF_UNIX) as local, pytest.raises(OSError, match="not a public address"):
                local.connect(str(tmp_path / "none"))
            with ThreadPoolExecutor(1) as beside:
                beside.submit(socket.create_connection, address).result().close()
        socket.create_connection(address).close()
    assert judge.refused
