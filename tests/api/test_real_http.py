"""Over a real socket: what only a real server and a real connection show."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from horarium.api.limits import BODY_BYTES_MAX

from .conftest import Api

pytestmark = pytest.mark.slow

Address = tuple[str, int]


class Started(uvicorn.Server):
    """Says when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


@pytest.fixture
async def address(api: Api) -> AsyncIterator[Address]:
    """The API behind uvicorn on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = Started(uvicorn.Config(api.app, log_config=None, access_log=False, ws="none", lifespan="off"))
    serving = asyncio.create_task(server.serve([listener]))
    await server.accepting.wait()
    yield listener.getsockname()
    api.claims.close()
    server.should_exit = True
    await serving


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: testserver", "Content-Type: application/json", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
    return int(lines[0].split()[1]), await reader.readexactly(length)


CLAIM = json.dumps({"queues": ["work"], "wait_seconds": 60, "worker": "w"}).encode()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_worker_that_closes_its_connection_takes_no_run(api: Api, address: Address, reset: bool) -> None:
    joined = api.claims.wake
    _, writer = await asyncio.open_connection(*address)
    writer.write(request("POST", "/api/v1/runs/claim", CLAIM))
    await joined.wait()
    left = asyncio.Event()
    line = api.claims._lines[("pull/work",)]
    line.leave.append(left.set)
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    await left.wait()
    assert (len(line.waiters), api.claims.waiting) == (0, 0)
    run = await api.add_run()
    await api.claims.step(api.clock.now())
    assert (await api.get(f"/runs/{run.id}")).json["state"] == "pending"


async def test_a_worker_that_waits_gets_its_run(api: Api, address: Address) -> None:
    joined = api.claims.wake
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request("POST", "/api/v1/runs/claim", CLAIM))
    await joined.wait()
    run = await api.add_run()
    await api.claims.step(api.clock.now())
    status, body = await answer(reader)
    assert (status, json.loads(body)["runs"][0]["id"]) == (200, run.id)
    writer.close()


async def test_a_body_without_end_is_cut_off(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request("POST", "/api/v1/jobs", b"", "Transfer-Encoding: chunked"))
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    for _ in range(BODY_BYTES_MAX // 65_536 + 1):
        writer.write(chunk)
    status, body = await answer(reader)
    assert (status, json.loads(body)["code"]) == (413, "body_too_large")
    writer.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/jobs/%00", 404), ("/api/v1/jobs/%ff%fe", 404), ("/api/v1/jobs/..%2f..%2fetc", 404),
        ("//api/v1/jobs/x", 404), ("/api/v1/jobs/%F0%9F%92%A9", 404), ("/api/v1/jobs?cursor=%00", 400),
        ("/api/v1/runs?job=%ED%A0%80", 400), ("/%", 404), ("/api/v1/jobs/" + "a" * 8_000, 404),
    ],
)  # fmt: skip
async def test_an_odd_path_is_no_fault_of_the_server(address: Address, path: str, status: int) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request("GET", path))
    got, body = await answer(reader)
    assert (got, json.loads(body)["status"]) == (status, status)
    writer.close()


async def test_one_connection_serves_many_requests(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for path, status in (("/healthz", 200), ("/nope", 404), ("/api/v1/jobs", 200)):
        writer.write(request("GET", path))
        assert (await answer(reader))[0] == status
    writer.close()
