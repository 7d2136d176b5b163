"""What libcurl would change for outbound HTTP: bare aiohttp, bare libcurl (its multi interface on the event loop), our
delivery as it is, and our delivery with libcurl in the place of aiohttp, turn by turn against the same receiver.

    pip install pycurl
    PYTHONPATH=src:. python -m bench.libcurl [--requests 3000] [--rounds 7]

A prototype for measuring, not a client: see docs/adr/0019-outbound-http-client.md. The receiver stands in a process of
its own, parses no more than it must, and its CPU is shown too, so that one sees who waits for whom. On a machine that
is busy with other things, only the CPU for each request, and the ratios, mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

import aiohttp
import msgspec
import psutil
import pycurl
import uvloop

from bench.http_delivery import BODY, IN_FLIGHT, SECRET, Send, Uncancelled, measure, owed_run
from horarium.clock import SystemClock
from horarium.delivery.addresses import Endpoint, refusal
from horarium.delivery.answers import BODY_BYTES_MAX, Answer, kept_headers
from horarium.delivery.http import CONNECT_SECONDS, PER_HOST_MAX, TOTAL_MAX, HttpDelivery
from horarium.delivery.message import Request
from horarium.model import HttpTarget, Job, Succeeded
from horarium.ports import Assignment

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n\r\nok"
HEAD_BYTES_MAX = 64 * 1024


# ---- the receiver -----------------------------------------------------------------------------------------------


class Receiver(asyncio.Protocol):
    """Reads a head and as much body as it says, and answers."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._read = transport, b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self._read) < end + 4 + length:
                return
            self._read = self._read[end + 4 + length :]
            self._transport.write(ANSWER)


async def _serve(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await loop.run_in_executor(None, pipe.recv)


def serve(pipe: Connection) -> None:
    uvloop.run(_serve(pipe))


# ---- libcurl on the event loop ----------------------------------------------------------------------------------


class Multi:
    """libcurl's transfers on asyncio: it says which sockets to watch and when to wake it."""

    def __init__(self, prepare: Callable[[Any], None] = lambda easy: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._prepare = prepare
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, TOTAL_MAX)
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, PER_HOST_MAX)
        self._timer: asyncio.Handle | None = None
        self._idle: list[Any] = []
        self._ended: dict[Any, asyncio.Future[int]] = {}
        self._watched: set[int] = set()

    def take(self) -> Any:
        """A handle, prepared."""
        if self._idle:
            return self._idle.pop()
        easy = pycurl.Curl()
        easy.setopt(pycurl.NOSIGNAL, 1)
        self._prepare(easy)
        return easy

    async def perform(self, easy: Any) -> int:
        """Carry out the transfer; libcurl's error number (0: none). Cancelled: its connection is closed."""
        ended = self._ended[easy] = self._loop.create_future()
        self._multi.add_handle(easy)
        try:
            number: int = await ended
            return number
        finally:
            del self._ended[easy]
            self._multi.remove_handle(easy)
            self._idle.append(easy)

    def _act(self, socket: int, what: int) -> None:
        self._multi.socket_action(socket, what)
        while True:
            left, succeeded, failed = self._multi.info_read()
            for easy in succeeded:
                self._end(easy, 0)
            for easy, number, _ in failed:
                self._end(easy, number)
            if not left:
                return

    def _end(self, easy: Any, number: int) -> None:
        ended = self._ended.get(easy)
        if ended is not None and not ended.done():
            ended.set_result(number)

    def _watch(self, what: int, socket: int, multi: Any, data: Any) -> None:
        if socket in self._watched:
            self._watched.discard(socket)
            self._loop.remove_reader(socket)
            self._loop.remove_writer(socket)
        if what & pycurl.POLL_IN and what != pycurl.POLL_REMOVE:
            self._watched.add(socket)
            self._loop.add_reader(socket, self._act, socket, pycurl.CSELECT_IN)
        if what & pycurl.POLL_OUT and what != pycurl.POLL_REMOVE:
            self._watched.add(socket)
            self._loop.add_writer(socket, self._act, socket, pycurl.CSELECT_OUT)

    def _set_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds == 0:
            self._timer = self._loop.call_soon(self._act, pycurl.SOCKET_TIMEOUT, 0)
        elif milliseconds > 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0)

    def close(self) -> None:
        self._set_timer(-1)
        for easy in self._idle:
            easy.close()
        self._multi.close()


class CurlDelivery(HttpDelivery):
    """Our delivery, all of it, over libcurl: addresses judged as each socket is opened, answers bounded in head and
    body, nothing but HTTP, no redirect, no proxy. Errors become no outcomes here: in a measurement there are none."""

    _multi: Multi | None = None

    async def _exchange(self, endpoint: Endpoint, request: Request) -> Answer:
        if self._multi is None:
            self._multi = Multi(self._restrict)
        easy = self._multi.take()
        received = Received()
        easy.setopt(pycurl.URL, endpoint.origin + request.path)
        easy.setopt(pycurl.CUSTOMREQUEST, request.method)
        easy.setopt(pycurl.POSTFIELDS, request.body or b"")
        easy.setopt(pycurl.HTTPHEADER, _lines(request.headers))
        easy.setopt(pycurl.WRITEFUNCTION, received.take_body)
        easy.setopt(pycurl.HEADERFUNCTION, received.take_line)
        number = await self._multi.perform(easy)
        if number and not received.truncated:
            raise OSError(number, "libcurl could not carry it out")
        status = easy.getinfo(pycurl.RESPONSE_CODE)
        return Answer(status, kept_headers(received.headers), bytes(received.body[:BODY_BYTES_MAX]), received.truncated)

    def _restrict(self, easy: Any) -> None:
        easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.FOLLOWLOCATION, 0)
        easy.setopt(pycurl.PROXY, "")
        easy.setopt(pycurl.CONNECTTIMEOUT_MS, round(CONNECT_SECONDS * 1000))
        easy.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def _open_socket(self, purpose: int, address: Any) -> Any:
        """Called with the very address that would be connected to, for every new connection."""
        family, kind, protocol, (host, *_) = address
        host = host.decode() if isinstance(host, bytes) else host
        if refusal(ip_address(host), host, self._allow_private) is not None:
            return pycurl.SOCKET_BAD
        return socket(family, kind, protocol)

    async def close(self) -> None:
        if self._multi is not None:
            self._multi.close()
        await super().close()


class Received:
    """An answer as it comes in, up to its limits."""

    __slots__ = ("_head", "body", "headers", "truncated")

    def __init__(self) -> None:
        self.body, self.truncated, self._head = bytearray(), False, 0
        self.headers: dict[str, str] = {}

    def take_body(self, data: bytes) -> int:
        self.body += data
        self.truncated = len(self.body) > BODY_BYTES_MAX
        return -1 if self.truncated else len(data)

    def take_line(self, line: bytes) -> int:
        self._head += len(line)
        name, colon, value = line.partition(b":")
        if colon:
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        return len(line) if self._head <= HEAD_BYTES_MAX else -1


def _lines(headers: Mapping[str, str]) -> list[str]:
    return [f"{name}: {value}" for name, value in headers.items()] + ["Expect:"]


# ---- the figures ------------------------------------------------------------------------------------------------


async def compare(port: int, receiver: int, requests: int, rounds: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    job = Job(name="bench", trigger={}, target=HttpTarget(url, body=BODY), id="bench")
    owed = [Assignment(owed_run(number), job) for number in range(requests)]
    control = Uncancelled()
    deliveries = {
        "ours": HttpDelivery(SystemClock(), allow_private=True, signing_secret=SECRET),
        "ours on libcurl": CurlDelivery(SystemClock(), allow_private=True, signing_secret=SECRET),
    }
    multi = Multi()

    async def bare_libcurl(number: int) -> None:
        easy = multi.take()
        answer = bytearray()
        easy.setopt(pycurl.URL, url)
        easy.setopt(pycurl.POSTFIELDS, msgspec.json.encode(BODY))
        easy.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json"])
        easy.setopt(pycurl.WRITEFUNCTION, answer.extend)
        assert (await multi.perform(easy), bytes(answer)) == (0, b"ok")

    def delivering(delivery: HttpDelivery) -> Send:
        async def send(number: int) -> None:
            outcome = await delivery.deliver(owed[number], control)
            assert isinstance(outcome, Succeeded), outcome

        return send

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def bare_aiohttp(number: int) -> None:
            async with session.post(url, json=BODY) as response:
                assert await response.read() == b"ok"

        sends: dict[str, Send] = {"bare aiohttp": bare_aiohttp, "bare libcurl": bare_libcurl}
        sends |= {name: delivering(delivery) for name, delivery in deliveries.items()}
        figures = await take_turns(sends, psutil.Process(receiver), requests, rounds)
    for delivery in deliveries.values():
        await delivery.close()
    multi.close()
    report(figures)


async def take_turns(
    sends: Mapping[str, Send], receiver: psutil.Process, requests: int, rounds: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Requests per second, CPU microseconds for each here, and there."""
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sends}
    for send in sends.values():
        await measure(send, min(IN_FLIGHT * 4, requests))
    for _ in range(rounds):
        for name, send in sends.items():
            before = sum(receiver.cpu_times()[:2])
            rate, cpu = await measure(send, requests)
            figures[name].append((rate, cpu, (sum(receiver.cpu_times()[:2]) - before) / requests * 1e6))
    return figures


def report(figures: Mapping[str, list[tuple[float, float, float]]]) -> None:
    for name, rows in figures.items():
        rate, cpu, there = (statistics.median(column) for column in zip(*rows, strict=True))
        most = max(row[0] for row in rows)
        pairs = list(zip(rows, figures["bare aiohttp"], strict=True))
        faster = statistics.median(row[0] / bare[0] for row, bare in pairs)
        cheaper = statistics.median(bare[1] / row[1] for row, bare in pairs)
        print(
            f"{name:<16} {rate:7,.0f}/s (at best {most:7,.0f})  CPU {cpu:4.0f} us here, {there:3.0f} us there;"
            f" of bare aiohttp: {faster:.2f} requests/s, {cheaper:.2f} per CPU second"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--uvloop", action="store_true", help="for the sender too")
    options = parser.parse_args()
    near, far = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(far,), daemon=True)
    server.start()
    run = uvloop.run if options.uvloop else asyncio.run
    assert server.pid is not None
    run(compare(near.recv(), server.pid, options.requests, options.rounds))
    with suppress(BrokenPipeError):
        near.send(None)
    server.join(5)


if __name__ == "__main__":
    main()
