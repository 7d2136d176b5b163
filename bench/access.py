"""What a request costs the server: GET /jobs/x with a named key, with a token, with nothing, beside another checkout.

    python -m bench.access [--requests N] [--rounds N] [--beside PYTHON]

CPU of the server process for each request over one connection that is kept, in interleaved rounds; the median of the
rounds. `--beside`: the Python of another checkout's environment, whose server is asked without a key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

ADMIN = "a" * 20
AUDIENCE = "bench"
JOB = {"trigger": {"type": "interval", "every_seconds": 3600}, "target": {"type": "queue", "queue": "q"}}


class Server:
    """A `horarium serve` on a store in memory. `head`: sent with each request."""

    def __init__(self, python: str, *flags: str) -> None:
        command = [python, "-m", "horarium", "serve", "--port", "0", "--store", "memory://", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = next(line for line in self.process.stderr if "listening on" in line)
        self.url = next(word for word in line.split() if word.startswith("http://"))
        self.token = ""

    def call(self, method: str, path: str, body: Any, key: str = "") -> Any:
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    @property
    def cpu_seconds(self) -> float:
        """To the nanosecond, as the kernel's scheduler counts it."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def serving(python: str, *flags: str) -> Iterator[Server]:
    server = Server(python, *flags)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(40)


@contextmanager
def issuing() -> Iterator[tuple[str, str]]:
    """An issuer, and a token of it that lasts."""
    from joserfc import jwt
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(2048, {"kid": "one"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys = {"keys": [key.as_dict(private=False)]}
            said = keys if self.path == "/keys" else {"issuer": url, "jwks_uri": f"{url}/keys"}
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    now = int(time.time())
    claims = {"iss": url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 36_000, "scope": "jobs:read"}
    yield url, jwt.encode({"alg": "RS256", "kid": "one", "typ": "at+jwt"}, claims, key)
    server.shutdown()
    server.server_close()


async def ask(server: Server, requests: int) -> float:
    """CPU of the server for one request, in microseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    sent = f"authorization: Bearer {server.token}\r\n" if server.token else ""
    request = f"GET /api/v1/jobs/x HTTP/1.1\r\nhost: 127.0.0.1\r\n{sent}\r\n".encode()
    before = server.cpu_seconds
    for _ in range(requests):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
    spent = server.cpu_seconds - before
    writer.close()
    return spent / requests * 1e6


def measure(servers: Mapping[str, Server], requests: int, rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in servers}
    for server in servers.values():
        asyncio.run(ask(server, requests))
    for _ in range(rounds):
        for name, server in servers.items():
            found[name].append(asyncio.run(ask(server, requests)))
    for name, each in found.items():
        print(f"{name:<10} {statistics.median(each):7.0f} us ({min(each):.0f} to {max(each):.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside", help="the Python of another checkout")
    given = parser.parse_args()
    with ExitStack() as stack:
        url, token = stack.enter_context(issuing())
        servers = {"nothing": stack.enter_context(serving(sys.executable))}
        servers["key"] = stack.enter_context(serving(sys.executable, "--api-key", ADMIN))
        issuer = ("--api-key", ADMIN, "--oidc-issuer", url, "--oidc-audience", AUDIENCE)
        servers["token"] = stack.enter_context(serving(sys.executable, *issuer))
        if given.beside:
            servers["beside"] = stack.enter_context(serving(given.beside))
        for name, server in servers.items():
            server.call("PUT", "/jobs/x", JOB, ADMIN if name in ("key", "token") else "")
        fields = {"name": "bench", "roles": ["viewer"]}
        servers["key"].token = servers["key"].call("POST", "/keys", fields, ADMIN)["key"]
        servers["token"].token = token
        measure(servers, given.requests, given.rounds)


if __name__ == "__main__":
    main()
