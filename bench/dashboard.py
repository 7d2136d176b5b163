"""The dashboard beside many jobs and a long history: how long its pages take, what they weigh, what open ones cost.

    python -m bench.dashboard [--jobs 100000] [--runs 5000000] [--pages 200] [--store dashboard.db] [--browser]

Fills a SQLite file (once: a file that is there is taken as it is), starts `horarium serve` on it, asks for each page
40 times, and prints the time of the fastest 50 and 95 of 100, the CPU that the server spent on one, and its size as it
is sent. Then as many pages are kept open as asked for, each with its stream of events, and each looks again whenever
it is told to, while one job fires every second: what the server's process costs of a core. `--browser` adds the first
paint in Chromium, of pages that are opened with nothing kept from before. On a machine that is busy only the CPU
figures say something. Filling takes about 6 minutes and 1.6 GB; the rest about 2 minutes, 3 with `--browser`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.lists import BATCH, COPY_SQLITE, SEED, SPACING
from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant
from horarium.model import HttpTarget, Job, Run, State, uuid7
from horarium.stores.sqlite import SqliteStore
from horarium.stores.sqlite.connect import connect as connect_sqlite

TIMES = 40
PAINTS = 5
OPEN_SECONDS = 40.0
PAUSE_SECONDS, SPREAD_SECONDS, SPREAD_SECONDS_MAX, STALE_SECONDS = 2.0, 0.3, 20.0, 3.0
"""When a page looks again, as `app.js` has it."""
TEAMS = ("billing", "shop", "search", "platform", "data")
WITH_RUNS = 200
PAINTED = """new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
    .observe({ type: "paint", buffered: true }))"""


def a_job(number: int, now: Instant) -> Job:
    """Fires within the next day, at a time of its own."""
    fire = now + HOUR + number * 86_000 * SECOND // 100_000
    return Job(
        name=f"{TEAMS[number % 5]}-job-{number:06}",
        id=uuid7(now, os.urandom(10)),
        trigger={"type": "interval", "every_seconds": 86_400},
        target=HttpTarget(url=f"http://127.0.0.1:9/{number}"),
        labels={"team": TEAMS[number % 5]},
        enabled=number % 50 != 0,
        anchor_at=fire,
        planned_until=now,
        next_fire_at=fire if number % 50 else None,
        created_at=now - DAY,
        updated_at=now - DAY,
    )


def a_run(number: int, jobs: list[Job], now: Instant) -> Run:
    """One of the history; the newest is a minute old."""
    at = now - MINUTE - number * SPACING
    job = jobs[number % len(jobs)]
    state = State.FAILED if number % 997 == 0 else State.COMPLETED
    return Run(
        id=uuid7(at, os.urandom(10)), queue=job.queue, job=job.name, job_id=job.id, fire_at=at, due_at=at,
        created_at=at, state=state, attempt=1, token=1, started_at=at + 5_000, finished_at=at + 400_000,
        worker="node-1", error="ValueError: no price" if state is State.FAILED else None,
    )  # fmt: skip


async def fill(path: Path, jobs: int, runs: int) -> None:
    """Jobs through the store; runs through it too, and then copied further and further back by the database."""
    now = time.time_ns() // 1_000
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    made = [a_job(number, now) for number in range(jobs)]
    for start in range(0, jobs, BATCH):
        await store.add_jobs(made[start : start + BATCH])
    seed = min(SEED, runs)
    for start in range(0, seed, BATCH):
        await store.add_runs([a_run(number, made[:WITH_RUNS], now) for number in range(start, start + BATCH)])
    connection = connect_sqlite(store.location)
    since = now - MINUTE - seed * SPACING + SPACING
    for copy in range(1, runs // seed):
        connection.execute(COPY_SQLITE, (copy * seed * SPACING, since))
    connection.close()
    await store.close()


@contextmanager
def server(path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "horarium", "serve", "--port", str(port), "--store", f"sqlite:///{path}"]
    process = subprocess.Popen([*command, "--log-level", "error"])
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def cpu_of(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[bytes, int]:
    """The page, and its size as it was sent."""
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    sent = answer.read()
    assert answer.status == 200, (path, answer.status)
    return (gzip.decompress(sent) if answer.getheader("content-encoding") == "gzip" else sent), len(sent)


def measure(url: str, process: psutil.Process) -> None:
    """A line for each page."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    with urllib.request.urlopen(f"{url}/api/v1/runs?limit=1&state=failed", timeout=120) as answer:
        run = answer.read().decode().partition('"id":"')[2][:36]
    lists = ["/", "/?span=day", "/jobs", "/jobs?sort=next", "/jobs?q=shop-", "/jobs?q=job-0099", "/jobs?show=paused"]
    single = ["/jobs/billing-job-000005", "/runs", "/runs?state=failed", f"/runs/{run}"]
    spans = ["/calendar?span=day", "/calendar", "/calendar?span=month", "/timeline", "/timeline?span=24h",
             "/timeline?span=7d&by=job", "/forecast", "/failures", "/failures?span=month"]  # fmt: skip
    others = ["/queues", "/queue?name=http", "/nodes", "/channels", "/audit", "/new-job", "/approvals", "/holds",
              "/plans", "/batches", "/rates", "/business-days", "/search?q=shop-",
              "/bulk-runs?action=retry&state=failed", "/bulk-jobs?action=pause&q=shop-"]  # fmt: skip
    pages = [*lists, *single, *spans, *others]
    print(f"{'page':<30}{'p50 ms':>9}{'p95 ms':>9}{'CPU ms':>9}{'bytes':>9}")
    slowest = 0.0
    for page in pages:
        ask(connection, page)
        took, before = [], cpu_of(process)
        for _ in range(TIMES):
            begun = time.perf_counter()
            _, size = ask(connection, page)
            took.append(1_000 * (time.perf_counter() - begun))
        spent = 1_000 * (cpu_of(process) - before) / TIMES
        took.sort()
        slowest = max(slowest, took[TIMES * 95 // 100])
        shown = page if run not in page else "/runs/ID"
        print(f"{shown:<30}{took[TIMES // 2]:>9.1f}{took[TIMES * 95 // 100]:>9.1f}{spent:>9.1f}{size:>9,}", flush=True)
    print(f"slowest of all at 95 of 100: {slowest:.1f} ms")


class OpenPage:
    """A page that is open: it looks again when the stream says that something changed, as `app.js` does."""

    def __init__(self, url: str, looks: Counter[int]) -> None:
        self._host, self._looks = url.removeprefix("http://"), looks
        self._stale = threading.Event()

    def open(self) -> None:
        for work in (self._listen, self._look):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        stream = http.client.HTTPConnection(self._host, timeout=300)
        stream.request("GET", "/events")
        answer = stream.getresponse()
        while line := answer.readline():
            if line.startswith(b"event: changed"):
                self._stale.set()

    def _look(self) -> None:
        pages, looked, spread = http.client.HTTPConnection(self._host, timeout=300), 0.0, SPREAD_SECONDS
        while self._stale.wait():
            time.sleep(max(PAUSE_SECONDS - (time.monotonic() - looked), 0.0) + random.random() * spread)
            self._stale.clear()
            pages.request("GET", "/", headers={"Accept-Encoding": "gzip", "X-Live": "1"})
            answer = pages.getresponse()
            answer.read()
            looked = time.monotonic()
            self._looks[answer.status] += 1
            spread = SPREAD_SECONDS if answer.status == 200 else min(4 * spread, SPREAD_SECONDS_MAX)
            if answer.status != 200:
                time.sleep(random.random() * STALE_SECONDS)
                self._stale.set()


def keep_open(url: str, process: psutil.Process, pages: int) -> None:
    """What they cost while one job fires every second, beside what the same costs without them."""
    body = b'{"trigger":{"type":"interval","every_seconds":1},"target":{"type":"queue","queue":"seconds"}}'
    headers = {"content-type": "application/json"}
    put = urllib.request.Request(f"{url}/api/v1/jobs/every-second", body, headers, method="PUT")
    urllib.request.urlopen(put, timeout=60).close()
    looks = Counter[int]()
    shares = []
    for many in (0, pages):
        for _ in range(many):
            OpenPage(url, looks).open()
        time.sleep(5.0)
        looks.clear()
        before, begun = cpu_of(process), time.perf_counter()
        time.sleep(OPEN_SECONDS)
        shares.append((cpu_of(process) - before) / (time.perf_counter() - begun))
    print(f"\n{pages} pages open: {100 * (shares[1] - shares[0]):.1f} % of a core more than the "
          f"{100 * shares[0]:.1f} % without; {looks.total() / OPEN_SECONDS:.1f} looks a second, "
          f"{looks.total() - looks[200]} of {looks.total()} refused")  # fmt: skip


async def first_paint(url: str) -> None:
    """In Chromium, with nothing kept from before."""
    from tests.dashboard.browsing import WIDE, chromium

    print(f"\n{'first paint':<30}{'p50 ms':>9}{'worst ms':>9}")
    async with chromium() as browser:
        for path in ("/", "/jobs", "/jobs/billing-job-000005", "/runs", "/calendar", "/queues", "/nodes", "/new-job"):
            took = []
            for _ in range(PAINTS):
                context = await browser.new_context(base_url=url, viewport=WIDE, timezone_id="UTC")
                page = await context.new_page()
                await page.goto(path)
                took.append(await page.evaluate(PAINTED))
                await context.close()
            took.sort()
            print(f"{path:<30}{took[PAINTS // 2]:>9.0f}{took[-1]:>9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5_000_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--store", type=Path, default=Path("dashboard.db"))
    parser.add_argument("--browser", action="store_true")
    given = parser.parse_args()
    if not given.store.exists():
        begun = time.perf_counter()
        asyncio.run(fill(given.store, given.jobs, given.runs))
        print(f"{given.jobs:,} jobs and {given.runs:,} runs made in {time.perf_counter() - begun:.0f} s\n")
    with server(given.store) as (url, process):
        measure(url, process)
        if given.browser:
            asyncio.run(first_paint(url))
        keep_open(url, process, given.pages)


if __name__ == "__main__":
    main()
