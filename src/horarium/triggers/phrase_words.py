"""The vocabulary of phrases, and their tokens.

Owns which words mean what, and the cut of a text into tokens with positions. One pass, one regular expression without
nested repetition: linear. Text that can't be a token is refused at once with its position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from unicodedata import normalize

from horarium.errors import InvalidTrigger
from horarium.triggers.phrase_questions import slashed_date, unslashed_date
from horarium.triggers.words import MONTHS, WEEKDAYS, quote
from horarium.triggers.zones import zone_names

_OF_US = {
    "eastern": "America/New_York",
    "central": "America/Chicago",
    "mountain": "America/Denver",
    "pacific": "America/Los_Angeles",
}
_REGIONS = frozenset(
    ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
)


ZONE_NAMES = {
    **{f"us {part}": zone for part, zone in _OF_US.items()},
    **dict.fromkeys(("cet", "cest", "central european"), "Europe/Berlin"),
    "jst": "Asia/Tokyo",
    "kst": "Asia/Seoul",
    "sgt": "Asia/Singapore",
    "hkt": "Asia/Hong_Kong",
    "msk": "Europe/Moscow",
}
"""Names of zones that mean the same everywhere; where one has two offsets, it is the zone with both."""
_KNOWN = {
    **ZONE_NAMES,
    "san francisco": "America/Los_Angeles",
    "mumbai": "Asia/Kolkata",
    "beijing": "Asia/Shanghai",
    "barcelona": "Europe/Madrid",
    "munich": "Europe/Berlin",
    "frankfurt": "Europe/Berlin",
    "geneva": "Europe/Zurich",
    "milan": "Europe/Rome",
    "montreal": "America/Toronto",
}
"""Names that mean one zone to everyone, though no zone is called so."""


def city_zone(name: str) -> str | None:
    """The zone named after a place, given in small letters; None where there is none."""
    return _KNOWN.get(name) or _cities().get(name)


@lru_cache(maxsize=1)
def _cities() -> dict[str, str]:
    found: dict[str, str] = {}
    for zone in sorted(zone_names(), key=lambda name: (-name.count("/"), name)):
        region, _, city = zone.rpartition("/")
        if region.split("/")[0] in _REGIONS:
            found[city.lower().replace("_", " ")] = zone
    return found


TEXT_MAX = 512
"""Characters in a phrase."""

_TOKEN = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)(?![\w-])"
    r"|(?P<slashed>\d{1,2}/\d{1,2}/\d{4})(?![\w/-])"
    r"|(?P<decimal>\d{1,4}\.\d{1,2})(?=[ \t]*(?:days?|hours?|hrs?|minutes?|mins?|weeks?)(?!\w))"
    r"|(?P<time>\d{1,2}:\d\d(?::\d\d)?(?:[ap]m)?|\d{1,2}[ap]m|\d{1,2}h\d\d|\d{1,2}\.\d\d(?:[ap]m)?)(?![\w:]|\.\d)"
    r"|(?P<ordinal>\d{1,3}(?:st|nd|rd|th))(?!\w)"
    r"|(?P<past>:\d\d)(?![\w:])"
    r"|(?P<short>\d{1,5}(?:h|m|s|min|d|w))(?!\w)"
    r"|(?P<number>\d{1,9})(?![\w:])"
    r"|(?P<half>[ap]\.m\.|[ap]m(?!\w))"
    r"|(?P<zone>[a-z_]+(?:/[a-z0-9_+-]+){1,3}|utc|gmt)(?!\w)"
    r"|(?P<word>q[1-4](?!\w)|[a-z]+(?:'[a-z]+)?)"
    r"|(?P<comma>,)"
    r"|(?P<sign>[-\u2013\u2014@&])",
    re.ASCII | re.IGNORECASE,
)

UNITS = {
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "second"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "minute"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("day", "days"), "day"),
    **dict.fromkeys(("week", "weeks"), "week"),
    **dict.fromkeys(("month", "months"), "month"),
    **dict.fromkeys(("quarter", "quarters"), "quarter"),
    **dict.fromkeys(("year", "years"), "year"),
}
FILLERS = ("only", "just", "exactly", "sharp")
"""Words that say nothing here."""
ADVERBS = {
    "minutely": "minute",
    "hourly": "hour",
    "daily": "day",
    "weekly": "week",
    "monthly": "month",
    "quarterly": "quarter",
    "yearly": "year",
    "annually": "year",
}
_NUMBER_NAMES = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_ORDINAL_NAMES = ("first", "second", "third", "fourth", "fifth", "sixth")
NUMBERS = {word: n for n, word in enumerate(_NUMBER_NAMES, 1)} | {"thirty": 30, "forty": 40, "fifty": 50}
ORDINALS = {word: n for n, word in enumerate(_ORDINAL_NAMES, 1)} | {"last": -1}
MONTH_NAMES = (
    {name.lower(): n for n, name in enumerate(MONTHS, 1)}
    | {name[:3].lower(): n for n, name in enumerate(MONTHS, 1)}
    | {"sept": 9}
)
QUARTERS = {f"q{n + 1}": range(3 * n + 1, 3 * n + 4) for n in range(4)}
_SHORT = {
    "tues": 2,
    "thur": 4,
    "thurs": 4,
    "weds": 3,
    "m": 1,
    "w": 3,
    "f": 5,
    "mo": 1,
    "tu": 2,
    "we": 3,
    "th": 4,
    "fr": 5,
    "sa": 6,
    "su": 0,
}
DAY_NAMES = (
    {name.lower(): n for n, name in enumerate(WEEKDAYS)}
    | {name[:3].lower(): n for n, name in enumerate(WEEKDAYS)}
    | _SHORT
)
FEASTS = {
    "christmas": (12, 25),
    "christmas day": (12, 25),
    "christmas eve": (12, 24),
    "boxing day": (12, 26),
    "new year's day": (1, 1),
    "new year's eve": (12, 31),
    "new years day": (1, 1),
    "new years eve": (12, 31),
    "halloween": (10, 31),
    "valentine's day": (2, 14),
    "valentines day": (2, 14),
}
"""Days of every year by their names: those whose date is the same wherever they are kept."""
DAY_PLURALS = {f"{name.lower()}s": n for n, name in enumerate(WEEKDAYS)}
DAY_PARTS = {
    **dict.fromkeys(("morning", "mornings"), "morning"),
    **dict.fromkeys(("afternoon", "afternoons"), "afternoon"),
    **dict.fromkeys(("evening", "evenings"), "evening"),
    **dict.fromkeys(("night", "nights", "nightly"), "night"),
    "tonight": "tonight",
}
RANGE_WORDS = ("to", "through", "thru", "until", "till", "-")
_SIGNS = {"@": "at", "&": "and", "\u2013": "-", "\u2014": "-"}
_SHORT_UNITS = {"h": "hour", "m": "minute", "min": "minute", "s": "second", "d": "day", "w": "week"}
LONGEST = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of each month, in a leap year."""

TIMES = {"noon": (12, 0, 0), "midday": (12, 0, 0), "midnight": (0, 0, 0)}


_OTHER_WORDS = (
    "every each other alternate between except excluding until starting before after weekday weekdays weekend weekends"
    " workday workdays business fortnight fortnightly today tomorrow twice thrice once times christmas half past next"
)
VOCABULARY = (
    *(
        word
        for words in (UNITS, ADVERBS, NUMBERS, ORDINALS, MONTH_NAMES, DAY_NAMES, DAY_PLURALS, DAY_PARTS, TIMES, FILLERS)
        for word in words
        if len(word) > 3
    ),
    *_OTHER_WORDS.split(),
)
"""What a word that is not understood is compared with."""

_LIKE_CRON = re.compile(r"\s*[\w*?/,#-]+(?:\s+[\w*?/,#-]+){1,7}\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """One word of a phrase. `text` is in small letters, `given` as it was written."""

    kind: str
    text: str
    given: str
    position: int
    index: int


def tokens_of(text: object) -> list[Token]:
    """The tokens of a phrase. Raises InvalidTrigger with the position of other text."""
    if not isinstance(text, str):
        raise InvalidTrigger(f"text: expected a phrase such as 'every day at 9am', not {quote(text)}", field="text")
    if len(text) > TEXT_MAX:
        raise InvalidTrigger(
            f"text: {len(text)} characters: expected at most {TEXT_MAX}", field="text", position=TEXT_MAX
        )
    found: list[Token] = []
    position = 0
    written, text = text, _plain(text)
    while position < len(text):
        if text[position] in " \t":
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            if "*" in text and _LIKE_CRON.fullmatch(text):
                _refuse_cron(text)
            if text[position] == "." and not text[position + 1 :].strip():
                break
            _refuse_slashes(text, position)
            raise InvalidTrigger(
                f"text: {quote(text[position:])} at position {position} is not understood: expected a word, a number,"
                " a time such as 9:30am or a date such as 2026-12-31",
                field="text",
                position=position,
            )
        found += _read(match, len(found), written)
        position = match.end()
    if not found:
        raise InvalidTrigger(
            "text: it is empty: expected a phrase such as 'every day at 9am'", field="text", position=0
        )
    return found


def _plain(text: str) -> str:
    """Without accents, so that S\u00e3o Paulo is a word, and each letter where it was."""
    return "".join(normalize("NFKD", letter)[0] if letter.isalpha() else letter for letter in text)


def _read(match: re.Match[str], index: int, written: str) -> list[Token]:
    """One token; two for `30m`, a number and its unit."""
    kind, given, position = str(match.lastgroup), written[match.start() : match.end()], match.start()
    text = match.group().lower()
    if kind == "zone" and all(name in DAY_NAMES for name in text.split("/")):
        return _slashed_days(given, position, index)
    if kind == "slashed":
        date = unslashed_date(text)
        if date is None:
            _refuse_slashes(match.string, position + text.index("/"))
        return [Token("date", str(date), given, position, index)]
    if kind == "sign":
        return [Token("word", _SIGNS.get(text, text), given, position, index)]
    if kind == "short":
        digits = text.rstrip("adhimnsw")
        unit = _SHORT_UNITS[text.removeprefix(digits)]
        after = position + len(digits)
        return [Token("number", digits, given, position, index), Token("word", unit, given, after, index + 1)]
    return [Token(kind, text, given, position, index)]


def _slashed_days(given: str, position: int, index: int) -> list[Token]:
    """`mon/wed/fri`: a list."""
    found: list[Token] = []
    for name in given.split("/"):
        if found:
            found.append(Token("word", "and", "/", position - 1, index + len(found)))
        found.append(Token("word", name.lower(), name, position, index + len(found)))
        position += len(name) + 1
    return found


def _refuse_slashes(text: str, position: int) -> None:
    found = slashed_date(text, position) if text[position] == "/" else None
    if found is not None:
        begin, question = found
        said = f"text: {quote(text[begin:])} at position {begin}: {question}"
        raise InvalidTrigger(said, field="text", position=begin)


def _refuse_cron(text: str) -> None:
    count = len(text.split())
    fields = "5 (minute, hour, day of month, month, day of week), 6 (seconds first) or 7 (year last)"
    problem = f"it has {count} fields, and cron needs {fields}" if not 5 <= count <= 7 else "give it as cron"
    raise InvalidTrigger(
        f"text: {quote(text)} looks like a cron expression, not a phrase: {problem}", field="text", position=0
    )
