"""The long form: two servers and two workers on one store, faults at random for as long as asked, and the ledger.

    python -m tests.proof [--store sqlite|postgres|redis|redis-always|valkey|valkey-always|mongo|URL]
                          [--minutes 5] [--seed 1] [--only FAULT[,FAULT]]

A store of our own is struck too, in every way that `backends.py` knows (`--only`: in these alone); what stands behind a
URL is left alone. Exit status 0 if every invariant held, else 1 with the violations.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psutil

from tests.proof.backends import ALWAYS, KINDS, start_backend
from tests.proof.fleet import Fleet
from tests.proof.harness import Node, World
from tests.proof.receiver import micros
from tests.proof.verdict import Verdict

STRIKES = ("kill", "kill", "pause", "pause", "terminate")
STORE_FAULT_EVERY = 3
"""After so many faults of processes comes one of the store."""
STORE_FAULT_SECONDS = (2.0, 5.0, 12.0)
IN_FLIGHT_MIN = 1_500
FILL = (800, 200)
FINAL_SECONDS = 180.0
SHOWN_MAX = 8
CPU_SHARE_MAX = 0.2
LINES_PER_SECOND_MAX = 10.0


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="horarium-proof-")))
        backend = start_backend(given.store, folder, stack)
        world = stack.enter_context(World(backend.url, given.seed))
        fleet = Fleet(world, backend, folder / "work.log", given.seed)
        fleet.start(round(given.minutes * 60))
        with fleet.observed():
            _torment(fleet, given.seed, given.only.split(",") if given.only else sorted(backend.faults))
            verdict = fleet.judge(FINAL_SECONDS)
        return _report(world, given, verdict)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="Faults for a while, then the ledger.")
    parser.add_argument("--store", default="sqlite", help=f"{', '.join(KINDS)}, or the URL of a store")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="which faults of the store")
    return parser.parse_args()


def _torment(fleet: Fleet, seed: int, kinds: list[str]) -> None:
    random = Random(seed)
    fleet.fill(2_000, 500)
    kinds = [kind for kind in kinds if kind != ALWAYS]
    strikes = 0
    while micros() < fleet.plan.end:
        strikes += 1
        if kinds and strikes % STORE_FAULT_EVERY == 0:
            kind = kinds[strikes // STORE_FAULT_EVERY % len(kinds)]
            done = fleet.strike_store(kind, random.choice(STORE_FAULT_SECONDS))
        else:
            done = fleet.strike(random.choice(STRIKES))
        in_flight = fleet.in_flight()
        print(f"{len(fleet.world.receiver.arrivals)} requests, {in_flight} runs in flight; {done}", flush=True)
        if in_flight < IN_FLIGHT_MIN:
            fleet.fill(*FILL)


def _report(world: World, given: argparse.Namespace, verdict: Verdict) -> int:
    loudest = max(world.nodes, key=Node.lines_per_second)
    lines = loudest.lines_per_second()
    shares = [node.cpu_share(2.0) for node in world.nodes]
    memory = max(psutil.Process(node.pid).memory_info().rss for node in world.nodes) / 1e6
    print(f"{given.store}, {given.minutes:g} min, seed {given.seed}: {verdict}")
    print(f"  at rest: {max(shares):.1%} of a core, {memory:.0f} MB; at the worst {lines} log lines a second")
    for violation in verdict.violations(SHOWN_MAX):
        print(violation)
    if verdict.violations():
        for fault in world.all_faults():
            print(f"{fault.at / 1e6:.2f} to {fault.until / 1e6:.2f}: {fault.kind} {fault.node or ''}")
    if lines > LINES_PER_SECOND_MAX:
        print("\n".join(loudest.loudest()))
    quiet = max(shares) <= CPU_SHARE_MAX and lines <= LINES_PER_SECOND_MAX
    return 0 if quiet and not verdict.violations() else 1


if __name__ == "__main__":
    sys.exit(main())
