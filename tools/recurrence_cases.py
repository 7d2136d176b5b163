"""Writes the cases of conformance/recurrence: `python -m tools.recurrence_cases` (some minutes; the same every time).

A case is kept only if two engines that share no code agree on it, or if a standard prints its answer. Where engines
disagree, and a standard decides, the case goes to `disputed.jsonl` with what it says.

    rrule.jsonl     the examples of RFC 5545 as it prints them; random rules, ours against dateutil
    cron.jsonl      patterns of OCPS 1.0 to 1.4, ours against a model that asks each day (and cronsim, where it can)
    dst.jsonl       rules and patterns where the clock changes, ours against dateutil, cronsim and the model of rules
    disputed.jsonl  cases on which engines disagree
"""

from __future__ import annotations

import calendar
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim
from dateutil.rrule import rrulestr

from horarium.errors import InvalidTrigger
from horarium.triggers import cron
from horarium.triggers.rrule_trigger import rrule
from tests.triggers import test_rrule_rfc as rfc
from tests.triggers.rrule_model import elapsed, instants
from tests.triggers.rrule_random import draw_fast, draw_slow, draw_start

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "recurrence"
COUNT = 5
RANDOM_RULES, DISPUTED_EACH = 3_000, 25
ZONES = (
    "Europe/Berlin", "Europe/London", "Europe/Dublin", "America/New_York", "America/Los_Angeles", "America/St_Johns",
    "America/Santiago", "America/Havana", "Australia/Sydney", "Australia/Lord_Howe", "Pacific/Auckland",
    "Pacific/Chatham", "Asia/Jerusalem", "Asia/Beirut", "Africa/Cairo", "Atlantic/Azores",
)  # fmt: skip
Case = dict[str, Any]


def text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def case(kind: str, rule: str, zone: str, after: datetime, fires: list[datetime], **more: Any) -> Case:
    """Fewer than `count` are expected where the rule has ended."""
    answer = {"count": COUNT, "expected": [text(fire) for fire in fires]}
    return {"kind": kind, "rule": rule, "zone": zone, "after": text(after), **answer, **more}


# ---- RRULE


def rfc_cases() -> Iterator[Case]:
    """The examples of RFC 5545, section 3.8.5.3, with the instants that it lists."""
    tables = [
        *((name, rfc.START, rule, expected) for name, rule, expected in rfc.COMPLETE),
        *rfc.OTHER_STARTS,
        *rfc.FOR_EVER,
    ]
    zone = ZoneInfo("America/New_York")
    for name, start, rule, expected in tables:
        fires = rfc.read(expected) if isinstance(expected, str) else expected
        begin = datetime.strptime(start, "%Y%m%dT%H%M%S").replace(tzinfo=zone)
        head = f"DTSTART;TZID=America/New_York:{start}\nRRULE:{rule}"
        for skipped in range(0, max(len(fires) - COUNT, 1), 3):
            after = fires[skipped - 1] if skipped else begin - timedelta(seconds=1)
            more: Case = {"source": f"RFC 5545, section 3.8.5.3: {name}"}
            if "COUNT" not in rule and "UNTIL" not in rule:  # the RFC goes on with "..."
                more["count"] = len(fires[skipped : skipped + COUNT])
            yield case("rrule", head, str(zone), after, fires[skipped : skipped + COUNT], **more)


def random_rules() -> Iterator[tuple[str, datetime, str, datetime]]:
    """Rules with their start, zone, and the instant after which they are asked."""
    rng = random.Random(5545)
    while True:
        is_slow = rng.random() < 0.8
        rule, start = (draw_slow if is_slow else draw_fast)(rng), draw_start(rng)
        zone = rng.choice(ZONES) if is_slow and rng.random() < 0.5 else "UTC"
        chance = rng.random()
        if chance < 0.12:
            rule += f";COUNT={rng.randint(1, 12)}"
        elif chance < 0.22:
            rule += f";UNTIL={start + timedelta(days=rng.randint(1, 900) if is_slow else 2):%Y%m%dT%H%M%SZ}"
        begin = start.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        after = begin - timedelta(seconds=1)
        if rng.random() < 0.6:
            after += timedelta(seconds=rng.randint(0, 86_400 * 500 if is_slow else 3_600))
        yield rule, start, zone, after


def lines(rule: str, start: datetime, zone: str) -> str:
    return (
        f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}"
        if zone != "UTC"
        else (f"DTSTART:{start:%Y%m%dT%H%M%SZ}\nRRULE:{rule}")
    )


def ours(rule: str, after: datetime, **policies: str) -> list[datetime] | None:
    try:
        return rrule(rule, **policies).fires(after, COUNT)
    except InvalidTrigger:
        return None


def dateutils(rule: str, start: datetime, zone: str, after: datetime, end: datetime) -> list[datetime]:
    """dateutil on the wall clock of the zone; a wall time that is skipped or comes twice is read as RFC 5545 says."""
    place = ZoneInfo(zone)
    if "UNTIL=" in rule:  # dateutil wants UNTIL like DTSTART: naive, in local time
        rule = re.sub(r"UNTIL=(\w+)", lambda found: f"UNTIL={_local(found[1], place):%Y%m%dT%H%M%S}", rule)
    walls = takewhile((end + timedelta(days=3)).replace(tzinfo=None).__gt__, rrulestr(f"RRULE:{rule}", dtstart=start))
    found: list[datetime] = []
    for wall in walls:
        fire = wall.replace(tzinfo=place).astimezone(UTC)
        if fire > after and fire not in found:
            found.append(fire)
        if len(found) == COUNT:
            break
    return found


def _local(until: str, place: ZoneInfo) -> datetime:
    return datetime.strptime(until, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).astimezone(place).replace(tzinfo=None)


WHY = {
    "mixed": "RFC 5545, section 3.3.10: BYDAY is a list, and each of its days is one more; a numbered day beside a "
    "plain one narrows nothing",
    "setpos": "RFC 5545, section 3.3.10: a set of recurrence instances starts at the beginning of the interval, so "
    "BYSETPOS counts from the first day of the week, also in the week of DTSTART",
    "weekno": "RFC 5545, section 3.3.10: BYWEEKNO is by ISO 8601, and the parts that a rule lacks are taken from "
    "DTSTART, its weekday among them",
}


def why(rule: str) -> str | None:
    if re.search(r"BYDAY=[^;]*\d[A-Z]{2}", rule) and re.search(r"BYDAY=([^;]*,)?[A-Z]{2}(,|;|$)", rule):
        return "mixed"
    if "WEEKLY" in rule and "SETPOS" in rule:
        return "setpos"
    return "weekno" if "WEEKNO" in rule else None


def rule_cases() -> tuple[list[Case], list[Case]]:
    """Those on which the engines agree, and those on which a model sides with ours, and the RFC says why."""
    agreed, disputed = list(rfc_cases()), []
    wanted, each = len(agreed) + RANDOM_RULES, dict.fromkeys(WHY, 0)
    for rule, start, zone, after in random_rules():
        if len(agreed) >= wanted:
            break
        fires = ours(lines(rule, start, zone), after)
        is_fast = any(word in rule for word in ("HOURLY", "MINUTELY", "SECONDLY"))
        longest = timedelta(hours=30) if is_fast else timedelta(days=2_500)
        if (
            not fires
            or (len(fires) < COUNT and not ("COUNT" in rule or "UNTIL" in rule))
            or fires[-1] - after > longest
        ):
            continue
        theirs = dateutils(rule, start, zone, after, fires[-1] + timedelta(hours=1 if is_fast else 5_000))
        reason = why(rule)
        if theirs == fires and len(agreed) < wanted:
            agreed.append(case("rrule", lines(rule, start, zone), zone, after, fires, derived=["horarium", "dateutil"]))
        elif theirs != fires and reason is not None and not is_fast and each[reason] < DISPUTED_EACH:
            span = (fires[-1].date() - start.date()).days + 2
            if span > 4_000 or "COUNT" in rule or "UNTIL" in rule:
                continue
            model = [fire for fire in instants(rule, start, span, zone) if after < fire <= fires[-1]]
            if model == fires:
                each[reason] += 1
                others = {"dateutil": [text(fire) for fire in theirs]}
                more = {"derived": ["horarium", "model by day"], "reason": WHY[reason], "others": others}
                disputed.append(case("rrule", lines(rule, start, zone), zone, after, fires, **more))
    return agreed, disputed


# ---- cron


def field(rng: random.Random, low: int, high: int, names: tuple[str, ...] = ()) -> str:
    first = rng.randint(low, high - 1)
    last = rng.randint(first + 1, high)
    shapes = ["*", str(first), f"{first}-{last}", ",".join(str(n) for n in sorted(rng.sample(range(low, high + 1), 3)))]
    shapes += [f"*/{rng.randint(2, max(2, (high - low) // 2))}", f"{first}-{last}/{rng.randint(1, 3)}"]
    shapes += [rng.choice(names), rng.choice(names).lower(), f"{names[0]}-{names[3]}"] if names else []
    return rng.choice(shapes)


MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
NICKNAMES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
REFUSED = {
    "1.0": ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "* * * * 8",
            "*/0 * * * *", "30-10 * * * *", "* 22-2 * * *", "* * * *", "* * * * * * * *",
            "a * * * *", "* * * FOO *", "*,61 * * * *",
            "5,,6 * * * *", "-5 * * * *", "5- * * * *", "/5 * * * *", "* * * * MOON"],
    "1.1": ["@never", "@daily 0 0 * * *", "0 @daily * * *"],
    "1.2": ["60 * * * * *", "*/0 * * * * *"],
    "1.3": ["0 0 * * 1#0", "0 0 * * 1#6", "0 0 * * MON#", "0 0 * L *", "L 0 * * *", "0 0 1-15W * *", "0 0 32W * *"],
    "1.4": ["0 0 +1 * MON", "+0 0 * * *", "0 0 1 +1 *", "0 0 1 * MON+", "0 0 1 * MON,+TUE", "? * * * *", "* ? * * *",
            "* * * ? *"],
}  # fmt: skip


def patterns(rng: random.Random, level: str) -> str:
    """A random pattern that needs that level."""
    day, weekday = field(rng, 1, 28), field(rng, 0, 6, WEEKDAYS)
    day, weekday = (day if rng.random() < 0.5 else "*"), (weekday if rng.random() < 0.5 else "*")
    if level == "1.3":
        if rng.random() < 0.5:
            day, weekday = rng.choice(["L", "LW", f"{rng.randint(1, 28)}W"]), "*"
            day = day if day != "LW" else f"{rng.randint(1, 28)}W"
        else:
            name = rng.choice([*WEEKDAYS, "0", "3", "7"])
            day, weekday = "*", f"{name}{rng.choice(['#1', '#2', '#3', '#4', '#5', '#L'])}"
    if level == "1.4":
        day, weekday = field(rng, 1, 28).replace("*", "1-15"), "+" + field(rng, 0, 6, WEEKDAYS).replace("*", "1-5")
    minute, hour = field(rng, 0, 59), field(rng, 0, 23)
    pattern = f"{minute} {hour} {day} {field(rng, 1, 12, MONTHS) if rng.random() < 0.4 else '*'} {weekday}"
    if level == "1.2":
        pattern = f"{field(rng, 0, 59)} {pattern}"
        return f"{pattern} {rng.choice(['*', '2027', '2026-2029', '2026,2030'])}" if rng.random() < 0.5 else pattern
    return pattern


def model(pattern: str, after: datetime, days: int) -> list[datetime]:
    """Each second that is asked for, found by asking each day, by the words of the specification alone."""
    words = NICKNAMES.get(pattern, pattern).upper().split()
    words = [*([] if len(words) > 5 else ["0"]), *words, *([] if len(words) > 6 else ["*"])]
    second, minute, hour, day, month, weekday, year = words
    both, weekday = weekday.startswith("+"), weekday.removeprefix("+")
    times = [
        timedelta(hours=h, minutes=m, seconds=s)
        for h in values(hour, 0, 23) for m in values(minute, 0, 59) for s in values(second, 0, 59)
    ]  # fmt: skip
    found: list[datetime] = []
    for n in range(days):
        today = after.date() + timedelta(n)
        if today.month not in values(month, 1, 12, MONTHS) or today.year not in values(year, 1970, 2200):
            continue
        hits = (on_day(day, today), on_weekday(weekday, today))
        either = "*" not in (day[0], weekday[0]) and not both
        if any(hits) if either else all(hits):
            midnight = datetime(today.year, today.month, today.day, tzinfo=UTC)
            found += [midnight + time for time in times if midnight + time > after]
        if len(found) >= COUNT:
            break
    return found[:COUNT]


def values(word: str, low: int, high: int, names: tuple[str, ...] = (), base: int = 0) -> set[int]:
    found: set[int] = set()
    for term in word.split(","):
        span, _, step = term.partition("/")
        first, _, last = (str(low), "-", str(high)) if span == "*" else span.partition("-")
        numbers = [
            names.index(part) + (1 if low == 1 else 0) if part in names else int(part)
            for part in (first, last or first)
        ]
        found |= set(range(numbers[0], numbers[1] + 1, int(step or 1)))
    return found


def on_day(word: str, day: date) -> bool:
    length = calendar.monthrange(day.year, day.month)[1]
    if word == "L":
        return day.day == length
    if word.endswith("W"):
        wanted = date(day.year, day.month, int(word[:-1]))
        if wanted.isoweekday() == 6:
            wanted += timedelta(-1 if wanted.day > 1 else 2)
        elif wanted.isoweekday() == 7:
            wanted += timedelta(1 if wanted.day < length else -2)
        return day == wanted
    return day.day in values(word, 1, 31)


def on_weekday(word: str, day: date) -> bool:
    if "#" not in word:
        return day.isoweekday() % 7 in {value % 7 for value in values(word, 0, 7, WEEKDAYS)}
    name, _, nth = word.partition("#")
    wanted = WEEKDAYS.index(name) if name in WEEKDAYS else int(name) % 7
    if day.isoweekday() % 7 != wanted:
        return False
    last = (day + timedelta(7)).month != day.month
    return last if nth == "L" else (day.day - 1) // 7 + 1 == int(nth)


def cron_cases() -> tuple[list[Case], list[Case]]:
    rng = random.Random(14)
    found, disputed = [], []
    for level, count in {"1.0": 130, "1.2": 60, "1.3": 80, "1.4": 40}.items():
        kept = 0
        while kept < count:
            pattern = patterns(rng, level)
            after = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randint(0, 3 * 365 * 86_400))
            day, weekday = pattern.split()[-3 if len(pattern.split()) < 7 else -4 :][:3:2]
            if "*/" in day + weekday and "*" not in (day, weekday):
                continue  # OR or AND: disputed
            try:
                fires = cron(pattern).fires(after, COUNT)
            except InvalidTrigger:
                continue
            if len(fires) == COUNT and model(pattern, after, 3_000) == fires:
                kept += 1
                agree = ["horarium", "model by day", *(["cronsim"] if cronsims(pattern, after) == fires else [])]
                found.append(case("cron", pattern, "UTC", after, fires, level=f"OCPS {level}", derived=agree))
    for name in NICKNAMES:
        after = datetime(2026, 5, 5, 5, 5, 5, tzinfo=UTC)
        more = {"level": "OCPS 1.1", "source": "OCPS 1.1, section 7.1"}
        found.append(case("cron", name, "UTC", after, model(name, after, 3_000), **more))
    for level, refused in REFUSED.items():
        for pattern in refused:
            answer = {"refused": True, "level": f"OCPS {level}", "source": f"OCPS {level}"}
            found.append({"kind": "cron", "rule": pattern, "zone": "UTC", "after": text(after), "count": 1, **answer})
    for number in (2, 3, 5, 7):
        for weekday in WEEKDAYS:
            pattern = f"0 0 */{number} * {weekday}"
            reason = (
                "OCPS 1.1, section 6.1: a day field is unrestricted only if its first entry is `*` itself, so `*/2` is "
            )
            reason += (
                "restricted, and the two are joined by OR. Vixie's cron, Debian's, cronsim and horarium join with AND"
            )
            days = [after.date() + timedelta(n) for n in range(90)]
            fires = [
                datetime(day.year, day.month, day.day, tzinfo=UTC)
                for day in days if on_day(f"*/{number}", day) or on_weekday(weekday, day)
            ]  # fmt: skip
            fires = [fire for fire in fires if fire > after][:COUNT]
            others: Any = {"horarium": [text(fire) for fire in cron(pattern).fires(after, COUNT)]}
            about: Case = {"level": "OCPS 1.1", "source": "OCPS 1.1, section 6.1", "reason": reason, "others": others}
            if len(fires) == COUNT:
                disputed.append(case("cron", pattern, "UTC", after, fires, **about))
    return found, disputed


def cronsims(pattern: str, after: datetime) -> list[datetime] | None:
    try:
        return [fire.astimezone(UTC) for fire in islice(CronSim(pattern, after), COUNT)]
    except Exception:
        return None


# ---- where the clock changes


def changes(zone: str, year: int) -> list[datetime]:
    """The instants of that year at which the offset changes, to the minute."""
    place, found = ZoneInfo(zone), []
    hour = datetime(year, 1, 1, tzinfo=UTC)
    while hour.year == year:
        if hour.astimezone(place).utcoffset() != (hour + timedelta(hours=1)).astimezone(place).utcoffset():
            minute = hour
            while minute.astimezone(place).utcoffset() == hour.astimezone(place).utcoffset():
                minute += timedelta(minutes=1)
            found.append(minute)
        hour += timedelta(hours=1)
    return found


def dst_cases() -> Iterator[Case]:
    for zone in ZONES:
        place = ZoneInfo(zone)
        for change in changes(zone, 2026):
            before = (change - timedelta(minutes=1)).astimezone(place)
            wall = before.replace(tzinfo=None) + timedelta(minutes=1)
            after = change - timedelta(days=2, hours=12)
            for minutes in (-30, 0, 15, 30):
                time = wall + timedelta(minutes=minutes)
                start = datetime(2026, 1, 1, time.hour, time.minute)
                yield from _dst_rule("FREQ=DAILY", start, zone, after)
                yield from _dst_cron(f"{time.minute} {time.hour} * * *", zone, after)
            begin = (change - timedelta(hours=3)).astimezone(place).replace(tzinfo=None)
            hourly = lines("FREQ=HOURLY", begin, zone)
            fires = rrule(hourly).fires(change - timedelta(hours=2), COUNT)
            if [fire for fire in elapsed("FREQ=HOURLY", begin, 12, zone) if fire > change - timedelta(hours=2)][
                :COUNT
            ] == fires:
                more = {"derived": ["horarium", "model by second"]}
                yield case("rrule", hourly, zone, change - timedelta(hours=2), fires, **more)


def _dst_rule(rule: str, start: datetime, zone: str, after: datetime) -> Iterator[Case]:
    head = lines(rule, start, zone)
    fires = ours(head, after)
    if fires and dateutils(rule, start, zone, after, fires[-1] + timedelta(days=9)) == fires:
        yield case(
            "rrule", head, zone, after, fires, gap="shift", derived=["horarium", "dateutil"], source="RFC 5545, 3.3.5"
        )


def _dst_cron(pattern: str, zone: str, after: datetime) -> Iterator[Case]:
    fires = cron(pattern, zone).fires(after, COUNT)
    theirs = islice(CronSim(pattern, after.astimezone(ZoneInfo(zone))), COUNT)
    if [fire.astimezone(UTC) for fire in theirs] == fires:
        yield case("cron", pattern, zone, after, fires, gap="run_at_transition", derived=["horarium", "cronsim"])


def main() -> None:
    """Write the four files."""
    rules, disputed_rules = rule_cases()
    crons, disputed_crons = cron_cases()
    suites = {"rrule": rules, "cron": crons, "dst": list(dst_cases()), "disputed": disputed_rules + disputed_crons}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, cases in suites.items():
        unique = {(each["rule"], each["zone"], each["after"]): each for each in cases}
        numbered = [{"id": f"{name}-{n:04}", **each} for n, each in enumerate(unique.values(), 1)]
        dumped = "".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in numbered)
        (FOLDER / f"{name}.jsonl").write_text(dumped)
        print(f"{name}: {len(numbered)} cases")


if __name__ == "__main__":
    main()
