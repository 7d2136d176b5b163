"""HTTPS, with a real certificate on a real process."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from horarium.errors import InvalidSetting
from horarium.server.listening import tls_context
from tests.cli.test_processes import horarium, line_with, process
from tests.servers.certificate import make_certificate
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_the_api_is_served_over_tls(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    args = ["serve", "--store", "memory://", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)]
    with process(args, tmp_path) as started:
        url = line_with(started, "listening on").split("listening on ")[1].split()[0].strip("\x1b[0m")
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(f"{url}/healthz", context=trusting, timeout=PATIENCE) as answer:
            assert json.load(answer) == {"status": "ok"}
            assert answer.headers["strict-transport-security"] is None
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{url}/healthz", context=ssl.create_default_context(), timeout=PATIENCE)
        port = int(url.rpartition(":")[2])
        _clear_text_gets_nothing(port)
        listed = horarium(
            "job", "list", "--json", "--url", url.replace("127.0.0.1", "localhost"), SSL_CERT_FILE=str(cert)
        )
        assert json.loads(listed.stdout) == []


def _clear_text_gets_nothing(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert b"HTTP" not in link.recv(1000)
        except ConnectionResetError:
            return


def test_a_pair_that_does_not_fit_is_refused_at_the_start(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    (tmp_path / "empty.pem").write_text("")
    for a, b in ((cert, cert), (key, key), (cert, tmp_path / "none.pem"), (tmp_path / "empty.pem", key)):
        with pytest.raises(InvalidSetting, match=r"tls_cert, tls_key: .* can't be used"):
            tls_context(str(a), str(b))
    done = horarium("serve", "--tls-cert", str(cert), "--tls-key", str(cert), status=2)
    assert "Traceback" not in done.stderr
    assert tls_context(None, None) is None


def test_versions_that_are_broken_are_not_spoken(certificate: tuple[Path, Path]) -> None:
    context = tls_context(*map(str, certificate))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_key_that_asks_for_a_password_is_refused_and_not_waited_for(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    locked = tmp_path / "locked.pem"
    command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(InvalidSetting, match="not encrypted"):
        tls_context(str(cert), str(locked))
