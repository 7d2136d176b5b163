"""The long form: several servers on one store, faults at random for as long as asked, and the ledger at the end.

    python -m tests.proof [--store sqlite | postgres | URL] [--minutes 5] [--seed 1] [--nodes 4]

`sqlite` and `postgres` make a store of their own; a database of our own is struck too (killed and restarted, stalled),
as is a file of our own (held by another process). Exit status 0 if every invariant held, else 1 with the violations.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import apsw
import psutil

from tests.proof.harness import World, let_pass
from tests.proof.jobs import mixed_plan, whole_second
from tests.proof.ledger import Ledger, Verdict
from tests.proof.nemesis import KILL, PAUSE, TERMINATE, Nemesis
from tests.proof.receiver import micros
from tests.servers.postgres import Postgres

STORE_FAULT_SECONDS = 8.0
STORE_FAULT_EVERY = 8
"""After so many faults of nodes comes one of the store."""
FINAL_SECONDS = 120.0

StoreFaults = dict[str, Callable[[], None]]


def main() -> int:
    given = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="horarium-proof-")))
        url, store_faults = _store(given.store, folder, stack)
        world = stack.enter_context(World(url, given.seed))
        world.start_nodes(given.nodes)
        plan = mixed_plan(world.receiver.url, whole_second(15), round(given.minutes * 60))
        plan.define(world.api)
        _torment(world, given.seed, plan.end, store_faults)
        world.wait_over(plan.end, FINAL_SECONDS)
        ledger = Ledger(
            plan.owed, world.api.runs(), world.receiver.arrivals, world.receiver.reports, world.all_faults()
        )
        return _report(world, given.seed, ledger.judge())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="Faults for a while, then the ledger.")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres, or the URL of a store")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=4)
    return parser.parse_args()


def _store(asked: str, folder: Path, stack: ExitStack) -> tuple[str, StoreFaults]:
    """The store's URL, and what may be done to it."""
    if asked == "sqlite":
        path = folder / "store.db"
        return f"sqlite:///{path}", {"locked": lambda: _hold(path)}
    if asked == "postgres":
        server = Postgres()
        stack.callback(server.stop)
        server.start()
        return server.url, {"restart": server.restart, "stall": lambda: _stall(server)}
    return asked, {}


def _hold(path: Path) -> None:
    holder = apsw.Connection(str(path))
    holder.set_busy_timeout(10_000)
    holder.execute("BEGIN EXCLUSIVE").close()
    let_pass(STORE_FAULT_SECONDS)
    holder.execute("ROLLBACK").close()
    holder.close()


def _stall(server: Postgres) -> None:
    server.pause()
    let_pass(STORE_FAULT_SECONDS)
    server.resume()


def _torment(world: World, seed: int, end: int, store_faults: StoreFaults) -> None:
    nemesis = Nemesis(world, seed, (KILL, KILL, PAUSE, TERMINATE))
    random = Random(seed)
    strikes = 0
    while micros() < end:
        strikes += 1
        if store_faults and strikes % STORE_FAULT_EVERY == 0:
            kind = random.choice(sorted(store_faults))
            world.outage(kind, store_faults[kind])
        else:
            nemesis.strike()
        faults = world.all_faults()
        print(f"{len(world.receiver.arrivals)} deliveries; {faults[-1].kind} {faults[-1].node or ''}", flush=True)


def _report(world: World, seed: int, verdict: Verdict) -> int:
    shares = [node.cpu_share(2.0) for node in world.nodes]
    memory = max(psutil.Process(node.pid).memory_info().rss for node in world.nodes) / 1e6
    lines = max(node.lines_per_second() for node in world.nodes)
    print(f"seed {seed}: {verdict}")
    print(f"at rest: {max(shares):.1%} of a core, {memory:.0f} MB; at the worst {lines} log lines a second")
    for violation in verdict.violations():
        print(violation)
    return 1 if verdict.violations() or max(shares) > 0.2 else 0


if __name__ == "__main__":
    sys.exit(main())
