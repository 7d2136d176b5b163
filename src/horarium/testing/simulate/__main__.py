"""`python -m horarium.testing.simulate --seeds 1000 [--start N] [--steps M] [--share NAME=SHARE]`:
many worlds, and one line about them."""

from __future__ import annotations

import argparse
import sys

from horarium.testing.simulate.workload import SHARES
from horarium.testing.simulate.world import STEPS, Violation, simulate


def main() -> int:
    """Exit status 0: no violation; 1: at least one, each printed in full."""
    parser = argparse.ArgumentParser(prog="python -m horarium.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds (default: 100)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"length of the storm (default: {STEPS})")
    parser.add_argument("--brief", action="store_true", help="one line a violation, without its trace")
    parser.add_argument("--bus", type=float, default=0.0, help="share of jobs that go to a broker (default: 0)")
    parser.add_argument(
        "--share", action="append", default=[], metavar="NAME=SHARE",
        help=f"a share that is 0 by default ({', '.join(SHARES)}): as in the worlds of their own",
    )  # fmt: skip
    given = parser.parse_args()
    for name, _, share in (each.partition("=") for each in given.share):
        if name not in SHARES:
            parser.error(f"--share: there is no share {name!r}")
        SHARES[name] = float(share)
    failed = runs = fires = 0
    for seed in range(given.start, given.start + given.seeds):
        try:
            report = simulate(seed, given.steps, on_bus=given.bus)
        except Violation as violation:
            failed += 1
            print(str(violation).split("\n")[0] if given.brief else violation, flush=True)
        else:
            runs += report.runs
            fires += report.fires
    print(f"{given.seeds} seeds, {failed} with a violation; {runs} runs, {fires} fire times checked")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
