"""All benchmarks, one after the other: `python -m bench [--quick]`."""

from __future__ import annotations

import sys

from bench import api, end_to_end, lateness, long_poll


def main() -> None:
    quick = "--quick" in sys.argv
    print("== end to end on SQLite")
    end_to_end.main(["--runs", "5000", "--rounds", "2"] if quick else [])
    print("\n== lateness")
    lateness.main(["--seconds", "5"] if quick else [])
    print("\n== the REST API, in batches")
    api.main(["--runs", "5000", "--rounds", "2"] if quick else [])
    print("\n== workers by long-poll")
    long_poll.main(["sqlite", "--workers", "200", "--seconds", "5"] if quick else [])


if __name__ == "__main__":
    main()
