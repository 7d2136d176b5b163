"""Our outbound HTTP beside bare aiohttp and bare libcurl (its multi interface on the event loop), turn by turn against
the same receiver.

    pip install pycurl
    PYTHONPATH=src:. python -m bench.libcurl [--requests 3000] [--rounds 7] [--uvloop]

See docs/adr/0036-callbacks-on-httptools.md. The receiver runs in a process of its own, and its CPU is
shown too, so that one sees who waits for whom. On a machine that is busy with other things, only the CPU for each
request, and the ratios, mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
import pycurl
import uvloop

from bench.http_delivery import BODY, IN_FLIGHT, SECRET, Send, Uncancelled, measure, owed_run
from bench.receiver import Receiver, receiving
from horarium.clock import SystemClock
from horarium.delivery.http import PER_HOST_MAX, TOTAL_MAX, HttpDelivery
from horarium.model import HttpTarget, Job, Succeeded
from horarium.ports import Assignment

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


# ---- the figures ------------------------------------------------------------------------------------------------


async def compare(receiver: Receiver, requests: int, rounds: int) -> None:
    url = receiver.url()
    job = Job(name="bench", trigger={}, target=HttpTarget(url, body=BODY), id="bench")
    owed = [Assignment(owed_run(number), job) for number in range(requests)]
    control = Uncancelled()
    delivery = HttpDelivery(SystemClock(), allow_private=True, signing_secret=SECRET)
    multi = Multi()

    async def bare_libcurl(number: int) -> None:
        easy = multi.take()
        answer = bytearray()
        easy.setopt(pycurl.URL, url)
        easy.setopt(pycurl.POSTFIELDS, msgspec.json.encode(BODY))
        easy.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json"])
        easy.setopt(pycurl.WRITEFUNCTION, answer.extend)
        assert (await multi.perform(easy), bytes(answer)) == (0, b"ok")

    async def ours(number: int) -> None:
        outcome = await delivery.deliver(owed[number], control)
        assert isinstance(outcome, Succeeded), outcome

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def bare_aiohttp(number: int) -> None:
            async with session.post(url, json=BODY) as response:
                assert await response.read() == b"ok"

        sends: dict[str, Send] = {"bare aiohttp": bare_aiohttp, "bare libcurl": bare_libcurl, "ours": ours}
        figures = await take_turns(sends, receiver, requests, rounds)
    await delivery.close()
    multi.close()
    report(figures)


async def take_turns(
    sends: Mapping[str, Send], receiver: Receiver, requests: int, rounds: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Requests per second, CPU microseconds for each here, and there."""
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sends}
    for send in sends.values():
        await measure(send, min(IN_FLIGHT * 4, requests))
    for _ in range(rounds):
        for name, send in sends.items():
            before = receiver.arrivals()[1]
            rate, cpu = await measure(send, requests)
            figures[name].append((rate, cpu, (receiver.arrivals()[1] - before) / requests * 1e6))
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
    run = uvloop.run if options.uvloop else asyncio.run
    with receiving() as receiver:
        run(compare(receiver, options.requests, options.rounds))


if __name__ == "__main__":
    main()
