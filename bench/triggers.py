"""How long the next fire time takes, beside python-dateutil, cronsim and croniter in the same run.

    python bench/triggers.py [--quick]

Each rule is asked for its next fire time 1, 10 and 100 years after its start, at scattered instants. Every instant is
asked twice and the better time counts, since the machine may be busy; p50 and worst are over the instants. dateutil
walks from the start, so it is asked few times, not at all for fast rules far from their start, and given up on after
`PATIENCE_SECONDS`. cronsim and croniter have no start; they are asked for the cron rule that means the same.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from croniter import croniter
from cronsim import CronSim
from dateutil.rrule import rrulestr
from dateutil.tz import gettz

from horarium.clock import DAY, to_datetime, to_instant
from horarium.errors import InvalidTrigger
from horarium.triggers.rrule_trigger import rrule

PATIENCE_SECONDS = 2.0
YEARS = (1, 10, 100)
ZONE = "Europe/Berlin"
START = datetime(1990, 1, 1, 8, 30)

RULES = [
    ("FREQ=DAILY", "30 8 * * *"),
    ("FREQ=DAILY;INTERVAL=3", None),
    ("FREQ=WEEKLY;BYDAY=MO,WE,FR", "30 8 * * MON,WED,FRI"),
    ("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU", None),
    ("FREQ=MONTHLY;BYDAY=2MO", "30 8 * * MON#2"),
    ("FREQ=MONTHLY;BYDAY=-1FR", "30 8 * * 5L"),
    ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", None),
    ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", "30 8 29 2 *"),
    ("FREQ=HOURLY;INTERVAL=6", None),
    ("FREQ=MINUTELY", "* * * * *"),
    ("FREQ=MINUTELY;INTERVAL=15;BYHOUR=9,10,11,12;BYDAY=MO,TU,WE,TH,FR", "*/15 9-12 * * 1-5"),
    ("FREQ=SECONDLY;INTERVAL=10", None),
    ("FREQ=SECONDLY;INTERVAL=7;BYHOUR=9", None),
    ("FREQ=DAILY;COUNT=100000", None),
]

REFUSED = (
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=MINUTELY;INTERVAL=60;BYMINUTE=5",
)


def measure(ask: Callable[[Any], object], moments: Sequence[Any]) -> list[float]:
    """Microseconds per call, the better of two; ends early when patience does. One call before warms up."""
    begun = time.perf_counter()
    ask(moments[0])
    taken: list[float] = []
    for moment in moments:
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            return taken or [(time.perf_counter() - begun) * 1e6]
        taken.append(min(_time(ask, moment), _time(ask, moment)))
    return taken


def _time(ask: Callable[[Any], object], moment: Any) -> float:
    before = time.perf_counter()
    ask(moment)
    return (time.perf_counter() - before) * 1e6


def scatter(years: int, count: int) -> list[datetime]:
    random, begin = Random(years), START.replace(tzinfo=UTC) + timedelta(365.25 * years)
    return [begin + timedelta(seconds=random.randrange(365 * 86_400)) for _ in range(count)]


def show(taken: list[float]) -> str:
    return f"{median(taken):>11,.1f} {max(taken):>11,.0f}" if taken else f"{'-':>11} {'-':>11}"


def compare(rule: str, cron: str | None, count: int) -> None:
    trigger = rrule(f"DTSTART;TZID={ZONE}:{START:%Y%m%dT%H%M%S}\nRRULE:{rule}")
    for years in YEARS:
        moments = scatter(years, count)
        line = f"{rule[:52]:<52} {years:>4} {show(measure(trigger.next_fire, [to_instant(m) for m in moments]))}"
        print(line, show(measure_dateutil(rule, years, moments[:5])), *measure_cron(cron, moments[:200]), flush=True)


def measure_dateutil(rule: str, years: int, moments: list[datetime]) -> list[float]:
    fast = any(word in rule for word in ("SECONDLY", "MINUTELY", "HOURLY"))
    if fast and (years > 1 or "SECONDLY" in rule):
        return []
    theirs = rrulestr(f"RRULE:{rule}", dtstart=START.replace(tzinfo=gettz(ZONE)))
    return measure(theirs.after, moments)


def measure_cron(cron: str | None, moments: list[datetime]) -> tuple[str, str]:
    if cron is None:
        return show([]), show([])
    local = [moment.astimezone(gettz(ZONE)) for moment in moments]
    sim = measure(lambda moment: next(CronSim(cron, moment)), local)
    other = measure(lambda moment: croniter(cron.replace("5L", "L5"), moment).get_next(datetime), local)
    return show(sim), show(other)


def measure_definitions() -> None:
    print("\nDefinition, ms (three times each, best)")
    for text in (*REFUSED, *(rule for rule, _ in RULES)):
        best = min(_define(text) for _ in range(3))
        print(f"  {text:<70} {best * 1e3:>8.2f}")


def _define(text: str) -> float:
    begun = time.perf_counter()
    with contextlib.suppress(InvalidTrigger):
        rrule(f"DTSTART;TZID={ZONE}:{START:%Y%m%dT%H%M%S}\nRRULE:{text}")
    return time.perf_counter() - begun


def measure_catch_up() -> None:
    trigger = rrule("DTSTART:20000101T000000Z\nRRULE:FREQ=SECONDLY")
    begun = time.perf_counter()
    counted = trigger.count_fires(10**15, 10**15 + 30 * DAY, 10**9)
    print(f"\n30 days of a rule by the second: {counted:,} fire times counted in {time.perf_counter() - begun:.6f} s")
    assert to_datetime(10**15).year == 2001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rules, few calls")
    quick = parser.parse_args().quick
    head = "".join(f" {name + ' p50':>11} {'worst':>11}" for name in ("ours", "dateutil", "cronsim", "croniter"))
    print(f"Next fire time, µs per call, zone {ZONE}\n{'rule':<52} {'y':>4}{head}")
    for rule, cron in RULES[:: 4 if quick else 1]:
        compare(rule, cron, 200 if quick else 2000)
    measure_definitions()
    measure_catch_up()


if __name__ == "__main__":
    main()
