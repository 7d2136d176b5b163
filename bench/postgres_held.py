"""What claims behind gates cost PostgreSQL while another session holds a snapshot open, beside what they cost else.

    PYTHONPATH=src python -m bench.postgres_held [--runs 20000] [--rounds 5] [--blocks] [--only TEXT]

For each case two databases on one server, since a snapshot keeps only what is dead in its own database. In both, in
turns, the same number of gated runs goes by (added, claimed and completed by the hundred, vacuumed after each 2,000);
in one of them a REPEATABLE READ transaction is open all the while. Then claims are measured, in turns again:

    one key          all runs under one key
    many keys        under a hundred keys
    a stuck key      under a hundred keys, and before them ten runs wait under one more that is full
    jobs in order    of a hundred jobs in order

    a hundred        a claim of a hundred runs
    nothing, 100     a claim that gets nothing, since all is taken that the keys admit, or the jobs' turns are; 100 wait
    nothing, 1,000   the same while 1,000 wait

A figure is the CPU that the server's processes of this database took for each claim (`/proc/PID/schedstat`), in
milliseconds: the median over the rounds, of each some claims, after one that plans what was vacuumed meanwhile.
`--blocks`: also how many blocks each statement touches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from msgspec.structs import replace

from bench.postgres_scale import new_database, opened
from bench.postgres_store import a_server
from bench.scale import NOW, a_job, a_run
from horarium.model import Run, RunChange, State
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.session import QUERIES, Session

BATCH, VACUUMED = 100, 2_000
QUEUE = "pull/q"
JOBS = [a_job(f"job-{number}") for number in range(BATCH)]
CASES = ("one key", "many keys", "a stuck key", "jobs in order")
STUCK = 10
EXPLAINED = ("claim_at_once", "claim_beyond", "claim_levels", "claim_gated", "claim_gates", "free_gates")


class Side:
    """A database, and whether a snapshot is held open in it."""

    def __init__(self, case: str, held: bool) -> None:
        self.case, self.held = case, held
        self.number = 0
        self.store: PostgresStore
        self.connection: asyncpg.Connection
        self.holder: asyncpg.Connection

    async def open(self, server: str) -> None:
        url = await new_database(server)
        self.store = await opened(url)
        self.connection, self.holder = await asyncpg.connect(url), await asyncpg.connect(url)
        await self.store.add_jobs(JOBS)
        if self.case == "a stuck key":
            await self.store.add_runs([self._new(key="stuck", maximum=1) for _ in range(STUCK + 1)])
            assert len(await self.claim(STUCK)) == 1
        if self.held:
            await self.holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM horarium.runs")

    async def close(self) -> None:
        await self.store.close()
        await self.connection.close()
        await self.holder.close()

    def _new(self, key: str | None = None, maximum: int = BATCH) -> Run:
        number, self.number = self.number, self.number + 1
        if key is None and self.case == "jobs in order":
            return a_run(number, JOBS[number % BATCH], serial=True)
        key = key or ("key" if self.case == "one key" else f"key-{number % BATCH}")
        return a_run(number, concurrency_key=key, concurrency_max=maximum)

    async def add(self, number: int) -> None:
        maximum = BATCH if self.case == "one key" else 1
        await self.store.add_runs([self._new(maximum=maximum) for _ in range(number)])

    async def claim(self, limit: int = BATCH) -> Sequence[Run]:
        return (await self.store.claim_runs([QUEUE], limit, "w", NOW, NOW, NOW)).runs

    async def end(self, runs: Sequence[Run]) -> None:
        ends = [replace(run, state=State.COMPLETED, finished_at=NOW, lease_expires_at=None) for run in runs]
        assert all(await self.store.settle_runs([RunChange(end, end.token, State.RUNNING, True) for end in ends], NOW))

    async def vacuum(self) -> None:
        await self.connection.execute("VACUUM horarium.runs")

    async def cpu(self) -> int:
        """Nanoseconds that the server's processes of this store took."""
        own = [self.connection.get_server_pid(), self.holder.get_server_pid()]
        rows = await self.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> ALL ($1::int4[])", own
        )  # fmt: skip
        return sum(int(Path(f"/proc/{row[0]}/schedstat").read_text().split()[0]) for row in rows)

    async def hundred(self, times: int) -> float:
        """Milliseconds a claim of a hundred."""
        took = 0
        for number in range(times + 1):
            await self.add(BATCH)
            before = await self.cpu()
            runs = await self.claim()
            if number:
                took += await self.cpu() - before
            assert len(runs) == BATCH
            await self.end(runs)
        return took / times / 1e6

    async def nothing(self, times: int) -> float:
        """Milliseconds a claim that gets nothing."""
        assert not await self.claim()
        before = await self.cpu()
        for _ in range(times):
            assert not await self.claim()
        return (await self.cpu() - before) / times / 1e6


async def blocks(side: Side) -> Counter[str]:
    """How many blocks each statement of a claim touches, which is made and taken back."""
    found: Counter[str] = Counter()
    rows = Session.rows

    async def counted(self: Session, name: str, *values: Any) -> list[Any]:
        if name in EXPLAINED:
            text = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES[name]}", *values)
            plan = json.loads(text)[0]["Plan"]
            found[name] += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return await rows(self, name, *values)

    Session.rows = counted  # type: ignore[method-assign]
    try:
        await side.end(await side.claim())
    finally:
        Session.rows = rows  # type: ignore[method-assign]
    return found


async def measure(server: str, case: str, runs: int, rounds: int, with_blocks: bool) -> None:
    sides = Side(case, False), Side(case, True)
    figures: dict[tuple[str, bool], list[float]] = {}
    touched: dict[tuple[str, bool], Counter[str]] = {}
    for side in sides:
        await side.open(server)
    for done in range(0, runs, BATCH):
        for side in sides:
            await side.add(BATCH)
            await side.end(await side.claim())
            if done % VACUUMED == VACUUMED - BATCH:
                await side.vacuum()
    for _ in range(rounds):
        for side in sides:
            figures.setdefault(("a hundred", side.held), []).append(await side.hundred(5))
            await side.vacuum()
    for side in sides:
        await side.add(BATCH)
        if with_blocks:
            touched["a hundred", side.held] = await blocks(side)
            await side.add(BATCH)
        assert len(await side.claim()) == BATCH
    waiting = 0
    for more in (100, 1_000):
        shape = f"nothing, {more:,}"
        for side in sides:
            await side.add(more - waiting)
            await side.vacuum()
            if with_blocks:
                touched[shape, side.held] = await blocks(side)
        waiting = more
        for _ in range(rounds):
            for side in sides:
                figures.setdefault((shape, side.held), []).append(await side.nothing(20))
    for shape in ("a hundred", "nothing, 100", "nothing, 1,000"):
        free, held = (statistics.median(figures[shape, held]) for held in (False, True))
        print(f"  {case:<14} {shape:<15} free {free:7.2f} ms   held {held:7.2f} ms   x {held / free:.2f}", flush=True)
        for held in (False, True) if with_blocks else ():
            print(f"      {'held' if held else 'free'}: {dict(touched[shape, held])}")
    for side in sides:
        await side.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server on this machine to use instead of one of its own")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--only", default="", help="cases with this in their name")
    given = parser.parse_args()
    with a_server(given.url) as url:
        for case in CASES:
            if given.only in case:
                asyncio.run(measure(url, case, given.runs, given.rounds, given.blocks))


if __name__ == "__main__":
    main()
