"""The long form: schedulers, workers and a broker under faults for as long as asked, and the ledger at the end.

    python -m tests.buses [--minutes 5] [--seed 1] [--nodes 3] [--workers 2]

Exit status 0 if nothing was lost and every run completed, else 1 with what was not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.buses.fleet import Fleet, servers
from tests.proof.harness import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.buses", description="Faults for a while, then the ledger.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    postgres, rabbitmq = servers()
    try:
        with tempfile.TemporaryDirectory(prefix="horarium-fleet-") as folder, World(postgres.url, given.seed) as world:
            fleet = Fleet(world, rabbitmq, Path(folder), given.seed)
            fleet.start(given.nodes, given.workers, given.minutes * 60)
            fleet.torment()
            wrong, words = fleet.judge()
    finally:
        rabbitmq.stop()
        postgres.stop()
    print(f"seed {given.seed}: {words}")
    for line in wrong[:50]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
