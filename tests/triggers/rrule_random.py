"""Random recurrence rules, seeded: every part of RFC 5545 under every frequency that allows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from tests.triggers.rrule_model import WEEKDAYS

SLOW = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
FAST = ("HOURLY", "MINUTELY", "SECONDLY")


def draw_start(random: Random) -> datetime:
    return datetime(random.randint(1990, 2020), 1, 1) + timedelta(seconds=random.randrange(365 * 86_400))


def draw_slow(random: Random) -> str:
    """A rule of DAILY or slower."""
    freq = random.choice(SLOW)
    parts = [f"FREQ={freq}", f"INTERVAL={random.choice((1, 1, 1, 2, 3, 5))}"]
    parts += _draw_days(random, freq)
    if random.random() < 0.4:
        parts.append(f"BYHOUR={_some(random, range(24), 3)}")
    if random.random() < 0.3:
        parts.append(f"BYMINUTE={_some(random, range(60), 3)}")
    if random.random() < 0.15:
        parts.append(f"BYSECOND={_some(random, range(60), 2)}")
    if random.random() < 0.25 and len(parts) > 2:
        parts.append(f"BYSETPOS={_some(random, [1, 2, 3, -1, -2, 5, -7], 2)}")
    if random.random() < 0.3:
        parts.append(f"WKST={random.choice(WEEKDAYS)}")
    return ";".join(parts)


def draw_fast(random: Random) -> str:
    """A rule finer than DAILY."""
    freq = random.choice(FAST)
    parts = [f"FREQ={freq}", f"INTERVAL={random.choice((1, 1, 2, 3, 5, 7, 11, 24, 90, 700))}"]
    parts += _draw_days(random, freq) if random.random() < 0.3 else []
    if random.random() < 0.5:
        parts.append(f"BYHOUR={_some(random, range(24), 6)}")
    if random.random() < 0.5:
        parts.append(f"BYMINUTE={_some(random, range(60), 8)}")
    if random.random() < 0.3:
        parts.append(f"BYSECOND={_some(random, range(60), 8)}")
    if random.random() < 0.2 and len(parts) > 2:
        parts.append(f"BYSETPOS={_some(random, [1, 2, -1], 2)}")
    return ";".join(parts)


def _draw_days(random: Random, freq: str) -> list[str]:
    parts = []
    if random.random() < 0.35:
        parts.append(f"BYMONTH={_some(random, range(1, 13), 4)}")
    if freq == "YEARLY" and random.random() < 0.2:
        parts.append(f"BYWEEKNO={_some(random, [*range(1, 54), -1, -2, -53], 4)}")
    if freq in ("YEARLY", *FAST) and random.random() < 0.15:
        parts.append(f"BYYEARDAY={_some(random, [*range(1, 367), *range(-366, 0)], 9)}")
    if freq != "WEEKLY" and random.random() < 0.35:
        parts.append(f"BYMONTHDAY={_some(random, [*range(1, 32), *range(-31, 0)], 6)}")
    if random.random() < 0.5:
        numbered = freq in ("YEARLY", "MONTHLY") and not any("WEEKNO" in part for part in parts)
        parts.append(f"BYDAY={_draw_weekdays(random, numbered and random.random() < 0.5)}")
    return parts


def _draw_weekdays(random: Random, numbered: bool) -> str:
    days = random.sample(WEEKDAYS, random.randint(1, 4))
    return ",".join(f"{random.choice((1, 2, 3, 4, 5, -1, -2, ''))}{day}" if numbered else day for day in days)


def _some(random: Random, values: object, limit: int) -> str:
    pool = list(values)  # type: ignore[call-overload]
    return ",".join(map(str, sorted(random.sample(pool, random.randint(1, min(limit, len(pool)))))))
