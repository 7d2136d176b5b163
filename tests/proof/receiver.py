"""An HTTP endpoint that writes down every request the moment it arrives, in a thread of its own.

What it answers stands in the path, so that a job's URL says how its endpoint behaves:

    /ok            200 at once
    /hold/0.3      200 after 0.3 seconds
    /fail/2        500 to the first two attempts of each run, then 200
    /callback/0.2  202 at once; 0.2 seconds later it reports `complete` to the server, and notes whether that was taken
    /gate          200 once `open_gate` was called

Each answer has the request's serial number as its body, so that the run's result tells which attempt it is of. It must
never lose an arrival: the record is appended before the first byte of an answer is sent.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

REPORT_TRIES = 40
REPORT_PAUSE_SECONDS = 0.25


def micros() -> int:
    """The wall clock in microseconds, as the servers read it."""
    return time.time_ns() // 1000


def instant(text: str) -> int:
    """Microseconds since 1970 of an RFC 3339 text."""
    moment = datetime.fromisoformat(text)
    return round(moment.timestamp() * 1_000_000)


@dataclass
class Arrival:
    """One request: when it came, for which attempt of which run, and how it was answered (None: not yet). `token`:
    that of its lease, if it was told. `serial`: which of all requests it was."""

    at: int
    run: str
    attempt: int
    fire_at: int
    job: str
    token: str
    status: int | None = None
    answered_at: int | None = None
    serial: int = 0


@dataclass(frozen=True)
class Reported:
    """What the server said to a completion that was reported under a token: its HTTP status. `began_at`: when it was
    first sent; `tries`: how often, until it was answered."""

    run: str
    token: int
    status: int
    at: int
    began_at: int
    tries: int = 1


@dataclass
class Receiver:
    """The endpoint. `arrivals` and `reports` only grow; `changed` is notified at each."""

    arrivals: list[Arrival] = field(default_factory=list)
    reports: list[Reported] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._reporters = ThreadPoolExecutor(8, "report")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._listening = threading.Event()
        self._thread.start()
        assert self._listening.wait(10), "the receiver did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._reporters.shutdown(wait=True, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    # ---- for tests

    def open_gate(self) -> None:
        """Let every request at /gate be answered, those that wait and those to come."""
        self._loop.call_soon_threadsafe(self._gate.set)

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str = "the arrivals") -> None:
        """Return when the condition holds; it is looked at after every arrival."""
        with self.changed:
            assert self.changed.wait_for(condition, seconds), f"{what} did not come within {seconds:g} s"

    def count(self, prefix: str = "") -> int:
        """How many requests arrived for jobs whose names begin so."""
        return sum(arrival.job.startswith(prefix) for arrival in list(self.arrivals))

    # ---- for connections

    def arrived(self, head: dict[str, str]) -> Arrival:
        arrival = Arrival(
            at=micros(),
            run=head["horarium-run"],
            attempt=int(head["horarium-attempt"]),
            fire_at=instant(head["horarium-fire-at"]),
            job=head.get("horarium-job", ""),
            token=head.get("horarium-token", ""),
        )
        with self.changed:
            arrival.serial = len(self.arrivals)
            self.arrivals.append(arrival)
            self.changed.notify_all()
        return arrival

    async def status_for(self, path: str, arrival: Arrival, head: dict[str, str]) -> int:
        """Behave as the path says; the status to answer."""
        _, kind, *rest = path.split("/")
        if kind == "hold":
            await asyncio.sleep(float(rest[0]))
        elif kind == "gate":
            await self._gate.wait()
        elif kind == "fail" and arrival.attempt <= int(rest[0]):
            return 500
        elif kind == "callback":
            self._loop.call_later(float(rest[0]), self._submit, head["horarium-report-url"], arrival)
            return 202
        return 200

    def _submit(self, url: str, arrival: Arrival) -> None:
        if not self._closing.is_set():
            self._reporters.submit(self._report, url, arrival)

    def _report(self, url: str, arrival: Arrival) -> None:
        """Report until the server says yes or no: one that is down is asked again."""
        body = json.dumps({"token": int(arrival.token), "result": {"token": int(arrival.token)}}).encode()
        began_at = micros()
        for tries in range(1, REPORT_TRIES + 1):
            request = urllib.request.Request(f"{url}/complete", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
                error.close()
            except OSError:
                status = 0
            if status not in (0, 500, 503):
                with self.changed:
                    self.reports.append(Reported(arrival.run, int(arrival.token), status, micros(), began_at, tries))
                    self.changed.notify_all()
                return
            if self._closing.wait(REPORT_PAUSE_SECONDS):
                return


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as our client speaks."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            head = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = int(head.get("content-length", "0"))
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            arrival = self._receiver.arrived(head)
            asyncio.get_running_loop().create_task(self._answer(first.split(" ")[1], arrival, head))

    async def _answer(self, path: str, arrival: Arrival, head: dict[str, str]) -> None:
        status = await self._receiver.status_for(path, arrival, head)
        arrival.status, arrival.answered_at = status, micros()
        if self._transport is not None and not self._transport.is_closing():
            body = str(arrival.serial)
            self._transport.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
