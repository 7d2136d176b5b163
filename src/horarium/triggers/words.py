"""How a rule is said in plain English: lists, times of day, ordinals, durations, names of days and months.

Owns wording that more than one trigger needs. It must never decide anything: what it says was understood elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from horarium.clock import DAY, HOUR, MINUTE, SECOND

WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
"""As cron counts them: 0 is Sunday."""

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

QUOTE_MAX = 60
"""Characters of the input that a message repeats."""

_UNITS = (("week", 7 * DAY), ("day", DAY), ("hour", HOUR), ("minute", MINUTE), ("second", SECOND))


def say_list(items: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def say_runs(numbers: Sequence[int], names: Sequence[str] | None = None) -> str:
    """A sorted list of numbers (or their names), three or more in a row as `first to last`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said: list[str] = []
    for run in runs:
        shown = [str(n) if names is None else names[n] for n in run]
        said += [f"{shown[0]} to {shown[-1]}"] if len(shown) > 2 else shown
    return say_list(said)


def say_time(hour: int, minute: int, second: int = 0) -> str:
    """`09:30`, or `09:30:15` where there are seconds."""
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def say_count(number: int, unit: str) -> str:
    """`1 hour`, `2 hours`."""
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 job`, `1,284 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def say_every(number: int, unit: str) -> str:
    """`every hour`, `every 2 hours`."""
    return f"every {unit}" if number == 1 else f"every {number} {unit}s"


def say_duration(micros: int) -> str:
    """A duration in its largest whole units: `1 hour and 30 minutes`."""
    parts: list[str] = []
    rest = micros
    for unit, size in _UNITS:
        if rest < size and unit != "second":
            continue
        whole, rest = divmod(rest, size)
        if unit == "second" and rest:
            parts.append(f"{whole + rest / SECOND:.6f}".rstrip("0") + " seconds")
        elif whole:
            parts.append(say_count(whole, unit))
    return say_list(parts)


def quote(given: object) -> str:
    """The input, as a message may repeat it: short, on one line, plain characters only."""
    text = ascii(given[: QUOTE_MAX + 1]) if isinstance(given, str) else _show(given)
    return text if len(text) <= QUOTE_MAX else f"{text[:QUOTE_MAX]}..."


def _show(given: object) -> str:
    simple = given is None or isinstance(given, bool | float) or (isinstance(given, int) and abs(given) < 10**QUOTE_MAX)
    return repr(given) if simple else f"a {type(given).__name__}"


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing where no known word is near."""
    from difflib import get_close_matches

    near = get_close_matches(word[:QUOTE_MAX].lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


PATTERNS_IN_WORDS = {
    r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(?!\n)$": "letters, digits and . _ : @ -, with a letter or a digit first",
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*(?!\n)$": "names of letters, digits and . _ / -, with a letter or a digit first",
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*=[^\x00]*(?!\n)$": "name=value, such as team=billing",
    r"^[A-Za-z0-9._:@-]*(?!\n)$": "letters, digits and . _ : @ -",
    r"^[A-Z]{1,16}(?!\n)$": "a method in capitals, such as POST",
    r"^[^\x00-\x1f\x7f]+(?!\n)$": "a text without line breaks or other control characters",
    r"^((pull|handler)/)?[A-Za-z0-9][A-Za-z0-9._:@-]*(?!\n)$": "NAME, pull/NAME or handler/NAME, NAME being letters, "
    "digits and . _ : @ -",
    r"^((pull|handler|bus)/)?[A-Za-z0-9][A-Za-z0-9._:@-]*(?!\n)$": "http, NAME, pull/NAME, handler/NAME or bus/NAME, "
    "NAME being letters, digits and . _ : @ -",
    r"^(env|file):[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$": "where the secret is, such as env:PGPASSWORD or file:pgpassword",
    r"^(queue|job|host|label:[A-Za-z0-9][A-Za-z0-9._/-]{0,62})$(?!\n)": "queue, job, host or label:NAME, as label:team",
    r"^\d{4}-\d{2}-\d{2}(?!\n)$": "a day, such as 2027-12-24",
    r"^[0-9a-fA-F-]+(?!\n)$": "an id, such as 0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37",
    r"^[0-9a-f]{4}[0-9a-f-]*(?!\n)$": "how an id begins, with four characters at least, such as 0193a5c2",
    r"^[A-Za-z0-9-]*(?!\n)$": "an id of letters, digits and -, such as 0193a5c2-7b00",
    r"^[^@\s<>,;]+@[^@\s<>,;]+(?!\n)$": "an address, such as ops@example.com",
    r"^/[^\x00]*$": "a path that begins with /, such as /var/backups",
    r"^[^:\x00-\x20]+(?!\n)$": "the name of a user, such as www-data",
    r"^[^=\x00]+$": "the name of a variable, without = and NUL characters, such as PGHOST",
    r"^[^\x00]*$": "a text without NUL characters",
    r"^[^\x00]*(?!\n)$": "a text without NUL characters and a line break at its end",
}
"""How each pattern that a text must match is said to people."""

_PATTERN = re.compile(r"`?str`? matching regex '(.*)'( - at key in .*|(?= - at `)|$)")


def say_patterns(message: str) -> str:
    """msgspec's message, with the pattern that a text must match in words."""

    def said(found: re.Match[str]) -> str:
        return PATTERNS_IN_WORDS.get(found[1].replace("\\\\", "\\"), found[0])

    return _PATTERN.sub(said, message)
