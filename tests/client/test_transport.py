"""What is sent, what is repeated, what is kept, and how failures are named."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from horarium import errors
from horarium.client import Client, Cut
from horarium.client.transport import ANSWER_BYTES_MAX, IDLE_SECONDS_MAX, RETRY_AFTER_SECONDS_MAX, Transport
from horarium.clock import SystemClock
from tests.client.scripted import CLOSING, RESET, SILENCE, answer, problem, scripted
from tests.servers.certificate import make_certificate
from tests.waiting import PATIENCE, eventually

OK = answer(200, {"jobs": 1})
JOB = {"name": "a", "trigger": {}, "target": {}}


_OPEN: list[Transport | Client] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Whatever a test opened is closed."""
    yield
    while _OPEN:
        _OPEN.pop().close()


def transport(url: str, **options: Any) -> tuple[Transport, list[float]]:
    """One that notes its waits instead of waiting."""
    waits: list[float] = []
    made = Transport(url, wait=waits.append, entropy=lambda n: b"\0" * n, **options)
    _OPEN.append(made)
    return made, waits


def connected(url: str) -> Client:
    client = Client(url)
    _OPEN.append(client)
    return client


def test_a_connection_is_used_again() -> None:
    with scripted(OK) as server, Client(server.url) as client:
        assert [client.stats(), client.stats()] == [{"jobs": 1}] * 2
        assert [request.connection for request in server.requests] == [1, 1]


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    with scripted(CLOSING + OK, OK) as server:
        sent, waits = transport(server.url)
        sent.request("POST", "/x", body={}, repeatable=False)
        assert server.closed.wait(PATIENCE)
        sent.request("POST", "/x", body={}, repeatable=False)
        assert ([request.connection for request in server.requests], waits) == ([1, 2], [])


def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    class Later(SystemClock):
        passed = 0.0

        def monotonic(self) -> float:
            return self.passed

    clock = Later()
    with scripted(OK) as server:
        sent, _ = transport(server.url, clock=clock)
        sent.request("GET", "/x")
        clock.passed = IDLE_SECONDS_MAX
        sent.request("GET", "/x")
        assert [request.connection for request in server.requests] == [1, 2]


def test_the_key_and_the_body_are_sent() -> None:
    with scripted(OK) as server:
        sent, _ = transport(server.url + "/base/", api_key="k")
        sent.request("PUT", "/x", body={"a": 1}, query={"n": [1, 2], "no": None})
        (request,) = server.requests
        assert (request.method, request.target) == ("PUT", "/base/x?n=1&n=2")
        assert request.headers["authorization"] == "Bearer k"
        assert (request.headers["content-type"], request.body) == ("application/json", {"a": 1})


def test_a_repeatable_request_is_repeated_when_the_connection_breaks() -> None:
    with scripted(RESET, RESET, OK) as server:
        sent, waits = transport(server.url)
        assert sent.request("GET", "/x").status == 200
        assert waits == [0.05, 0.1]


def test_one_that_may_have_been_carried_out_is_not_repeated_unless_it_is_repeatable() -> None:
    with scripted(RESET, OK) as server:
        sent, waits = transport(server.url)
        with pytest.raises(errors.Outage, match=r"no answer from http://127.0.0.1:\d+: "):
            sent.request("POST", "/x", body={}, repeatable=False)
        assert (len(server.requests), waits) == (1, [])


def test_attempts_come_to_an_end() -> None:
    with scripted(RESET) as server:
        sent, waits = transport(server.url, attempts_max=3)
        with pytest.raises(errors.Outage):
            sent.request("GET", "/x")
        assert (len(server.requests), len(waits)) == (3, 2)


def test_a_plain_server_that_is_asked_by_https_is_called_so_at_once(url: str) -> None:
    sent, waits = transport(url.replace("http:", "https:"), attempts_max=2)
    with pytest.raises(errors.Outage) as caught:
        sent.request("GET", "/x")
    assert str(caught.value) == f"{sent.url} does not speak TLS; name the server as {url}"
    assert waits == []


def test_an_unreachable_server_is_named_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        sent, waits = transport(url, attempts_max=2)
        with pytest.raises(errors.Outage, match="the connection was refused; start a server with `horarium serve`"):
            sent.request("POST", "/x", body={}, repeatable=False)
        assert len(waits) == 1, "a request that never left may always be repeated"


def test_retry_after_is_honoured() -> None:
    with scripted(problem(503, "store_unavailable", headers={"Retry-After": "3"}), OK) as server:
        sent, waits = transport(server.url)
        assert sent.request("GET", "/x").status == 200
        assert waits == [3.0]


@pytest.mark.parametrize(
    ("status", "repeatable", "repeated"),
    [(429, False, True), (429, True, True), (502, True, True), (504, True, True), (502, False, False),
     (503, False, False), (504, False, False), (500, True, False)],
)  # fmt: skip
def test_what_is_repeated_of_what_a_proxy_says(status: int, repeatable: bool, repeated: bool) -> None:
    with scripted(answer(status, b"<html>", {"Retry-After": "2"}), OK) as server:
        sent, waits = transport(server.url)
        if repeated:
            assert sent.request("POST", "/x", body={}, repeatable=repeatable).status == 200
            assert waits == [2.0]
        else:
            with pytest.raises(errors.Outage):
                sent.request("POST", "/x", body={}, repeatable=repeatable)
            assert waits == []


def test_retry_after_has_a_bound_and_nonsense_is_ignored() -> None:
    long = problem(503, "outage", headers={"Retry-After": "9999"})
    odd = problem(503, "outage", headers={"Retry-After": "soon"})
    with scripted(long, odd, OK) as server:
        sent, waits = transport(server.url)
        sent.request("GET", "/x")
        assert waits == [RETRY_AFTER_SECONDS_MAX, 0.1]


def test_an_outage_that_lasts_is_told_by_its_code() -> None:
    with scripted(problem(503, "store_unavailable", "the store is down")) as server:
        sent, _ = transport(server.url)
        with pytest.raises(errors.StoreUnavailable, match="the store is down"):
            sent.request("GET", "/x")
        assert len(server.requests) == 4


def test_silence_beyond_the_time_limit_is_not_repeated() -> None:
    with scripted(SILENCE) as server:
        sent, waits = transport(server.url, timeout_seconds=0.05)
        with pytest.raises(errors.Outage, match=r"did not answer GET /x within 0.05 s"):
            sent.request("GET", "/x")
        assert waits == []


def test_an_answer_that_ends_too_early_is_no_answer() -> None:
    with scripted(CLOSING + answer(200, b"x" * 10)[:-5], OK) as server:
        sent, _ = transport(server.url)
        assert sent.request("GET", "/x").body == b'{"jobs": 1}'
        assert len(server.requests) == 2


def test_an_answer_without_end_is_cut_off() -> None:
    head = f"HTTP/1.1 200 X\r\nContent-Length: {ANSWER_BYTES_MAX * 2}\r\n\r\n".encode()
    with scripted(CLOSING + head + b"x" * 100) as server:
        sent, _ = transport(server.url, attempts_max=1)
        with pytest.raises(errors.Outage, match="the answer ended too early"):
            sent.request("GET", "/x")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "not_found", errors.NotFound),
        (409, "lease_lost", errors.LeaseLost),
        (409, "state_conflict", errors.StateConflict),
        (409, "already_exists", errors.AlreadyExists),
        (422, "invalid_job", errors.InvalidJob),
        (422, "invalid_trigger", errors.InvalidTrigger),
        (422, "invalid_request", errors.InvalidRequest),
        (401, "unauthorized", errors.CallerError),
        (404, "new_one", errors.NotFound),
        (409, "new_one", errors.Conflict),
        (400, "new_one", errors.InvalidRequest),
        (429, "too_many_waiters", errors.Outage),
        (500, "internal_error", errors.Outage),
    ],
)
def test_a_problem_becomes_the_error_of_its_code(status: int, code: str, kind: type[errors.HorariumError]) -> None:
    with scripted(problem(status, code, "what it is", field="f")) as server:
        sent, _ = transport(server.url)
        with pytest.raises(errors.HorariumError) as caught:
            sent.request("GET", "/x")
        error = caught.value
        assert (type(error), error.code, error.message, error.field) == (kind, code, "what it is", "f")


def test_the_position_in_a_rule_comes_along() -> None:
    with scripted(problem(422, "invalid_trigger", position=7)) as server:
        with pytest.raises(errors.InvalidTrigger) as caught:
            connected(server.url).preview({"type": "cron"})
        assert caught.value.position == 7


@pytest.mark.parametrize(
    ("step", "kind", "words"),
    [
        (answer(502, b"<html>Bad Gateway</html>"), errors.Outage, "answered 502, and not as a Horarium server does"),
        (answer(200, b"<html>"), errors.HorariumError, "not what this client understands"),
        (answer(302, b"", {"Location": "/"}), errors.InvalidRequest, "answered 302"),
    ],
)
def test_what_is_no_answer_of_ours_is_told_as_such(step: bytes, kind: type[Exception], words: str) -> None:
    with scripted(step) as server, pytest.raises(kind, match=words):
        connected(server.url).stats()


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://h", "http://", "http://h:x", "http://u:p@h", "http://h?q"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidSetting, match="no server's address"):
        Client(url)


@pytest.mark.parametrize("key", ["", " ", "a\nb", "é"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(errors.InvalidSetting, match=r"^api_key: it is empty, or holds what no header can carry$"):
        Client("http://h", key)


def test_every_repetition_of_a_trigger_carries_the_same_key() -> None:
    with scripted(RESET, problem(404, "not_found")) as server:
        client = connected(server.url)
        with pytest.raises(errors.NotFound):
            client.trigger_job("a")
        with pytest.raises(errors.NotFound):
            client.trigger_job("a")
        first, again, other = (request.headers["idempotency-key"] for request in server.requests)
        assert first == again != other


def test_names_are_quoted_in_paths() -> None:
    with scripted(problem(404, "not_found")) as server:
        with pytest.raises(errors.NotFound):
            connected(server.url).get_job("a/../b?c")
        assert server.requests[0].target == "/api/v1/jobs/a%2F..%2Fb%3Fc"


def test_a_cut_ends_a_request_that_waits() -> None:
    with scripted(SILENCE) as server:
        sent, waits = transport(server.url, timeout_seconds=20)
        cut = Cut()
        ended: list[Exception] = []

        def wait() -> None:
            try:
                sent.request("POST", "/x", body={}, cut=cut)
            except errors.Outage as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert server.waiting.wait(PATIENCE)
        cut.cut()
        thread.join(PATIENCE)
        assert (len(ended), len(server.requests), waits) == (1, 1, [])


@pytest.mark.slow
def test_a_certificate_that_is_not_trusted_is_told_once(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        sent, waits = transport(f"https://127.0.0.1:{listener.getsockname()[1]}")
        asking = pool.submit(sent.request, "GET", "/x")
        with suppress(ssl.SSLError), context.wrap_socket(listener.accept()[0], server_side=True):
            pass
        with pytest.raises(errors.Outage) as caught:
            asking.result()
    said = f"the certificate of {sent.url} is not accepted: self-signed certificate; set SSL_CERT_FILE"
    assert str(caught.value).startswith(said)
    assert waits == []


@pytest.mark.slow
def test_a_cut_loses_nothing_that_was_handed_over_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was on its way."""
    cert, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent, _ = transport(f"https://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=PATIENCE)
        cut = Cut()
        answers: list[bytes] = []
        asking = threading.Thread(
            target=lambda: answers.append(sent.request("POST", "/x", body={}, cut=cut, attempts_max=1).body)
        )
        asking.start()
        with context.wrap_socket(listener.accept()[0], server_side=True, suppress_ragged_eofs=True) as link:
            assert link.recv(10_000)
            eventually(lambda: cut._socket is not None)
            cut.cut()
            link.sendall(OK)
            asking.join(PATIENCE)
    assert answers == [b'{"jobs": 1}']


@pytest.mark.slow
def test_the_client_needs_nothing_of_the_servers_dependencies() -> None:
    """Nor does it load the scheduler."""
    script = (
        "import sys\n"
        "for name in 'starlette uvicorn apsw click rich ruamel structlog prometheus_client'.split():\n"
        "    sys.modules[name] = None\n"
        "from horarium.client import Client, Worker\n"
        "assert 'asyncio' not in sys.modules and 'horarium.library.scheduler' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
