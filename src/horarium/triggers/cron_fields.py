"""Reading a cron expression: text in, bit masks out.

Owns the grammar of every field and all messages about it, each with the position of the fault. Linear in the length of
the text, which is capped first, so no input costs more than a few hundred microseconds. It knows nothing of dates:
which days a month has is `cron_days`, when to fire is `cron`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import NoReturn

from horarium.errors import InvalidTrigger
from horarium.triggers.words import counted, nearest, quote

EXPRESSION_MAX = 256
"""Characters in an expression."""
FIELDS_KEPT = 1_024

YEAR_MIN, YEAR_MAX = 1970, 2200
NTH_MAX = 5
LAST_BACK_MAX = 30
_DIGITS_MAX = 4

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_REFUSED = {
    "@reboot": "a schedule that outlives restarts has no reboot; enqueue the work when your process starts",
    "@every": "that is not cron; use the interval trigger, e.g. every('5m')",
}
_MONTHS = {"JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6, "JUL": 7, "AUG": 8, "SEP": 9} | {
    "OCT": 10,
    "NOV": 11,
    "DEC": 12,
}
_WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}


@dataclass(frozen=True, slots=True)
class Kind:
    """One field of the seven: its name, its bounds, and what a `*` reaches to."""

    name: str
    low: int
    high: int
    top: int
    names: dict[str, int] = field(default_factory=dict)

    def expected(self) -> str:
        """The allowed values, for a message."""
        names = f" or {'-'.join((next(iter(self.names)), list(self.names)[-1]))}" if self.names else ""
        return f"{self.low} to {self.high}{names}"


SECOND = Kind("second", 0, 59, 59)
MINUTE = Kind("minute", 0, 59, 59)
HOUR = Kind("hour", 0, 23, 23)
DAY = Kind("day of month", 1, 31, 31)
MONTH = Kind("month", 1, 12, 12, _MONTHS)
WEEKDAY = Kind("day of week", 0, 7, 6, _WEEKDAYS)
YEAR = Kind("year", YEAR_MIN, YEAR_MAX, YEAR_MAX)
_KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, YEAR)


@dataclass(slots=True)
class Values:
    """The values of one field. Bit n of `mask` means n (a year is kept as its distance from 1970)."""

    text: str
    mask: int = 0
    last_back: set[int] = field(default_factory=set)
    """`L` is 0, `L-3` is 3."""
    last_workday: bool = False
    near_workdays: set[int] = field(default_factory=set)
    nth: set[tuple[int, int]] = field(default_factory=set)
    """`MON#2` is (1, 2); `5L` and `5#L` are (5, -1)."""

    @property
    def starred(self) -> bool:
        """Whether it starts with `*` or `?`: Vixie's test for a field that does not restrict."""
        return self.text[0] in "*?"

    @property
    def special(self) -> bool:
        """Whether it names days that depend on the month: the last, the nearest workday, the nth weekday."""
        return bool(self.last_back or self.last_workday or self.near_workdays or self.nth)


@dataclass(frozen=True, slots=True)
class Fields:
    """All seven, in the order of the expression; absent ones are second 0 and every year. `joined`: a `+` before the
    day of week asks for a day that both day fields match."""

    second: Values
    minute: Values
    hour: Values
    day: Values
    month: Values
    weekday: Values
    year: Values
    hashed: bool
    joined: bool


def read_fields(expression: object, seed: str) -> Fields:
    """The fields of an expression. Raises InvalidTrigger with the position of the fault."""
    text = _check_text(expression)
    words = _split(_expand(text))
    if not 5 <= len(words) <= 7:
        _fail(
            f"{counted(len(words), 'field')}: expected 5 (minute hour day-of-month month day-of-week), 6 (seconds "
            "first) or 7 (year last)",
            len(text),
        )
    lead = [] if len(words) > 5 else [("0", 0)]
    tail = [] if len(words) > 6 else [("*", len(text))]
    words = lead + words + tail
    weekday_at = _KINDS.index(WEEKDAY)
    word, start = words[weekday_at]
    if joined := word.startswith("+"):
        words[weekday_at] = word[1:], start + 1
    read = [_read(number, word, start, seed if "H" in word else "") for number, (word, start) in enumerate(words)]
    second, minute, hour, day, month, weekday, year = read
    hashed = any("H" in word.replace("THU", "") for word, _ in words)
    return Fields(second, minute, hour, day, month, weekday, year, hashed, joined)


def draw(expression: str, seed: str) -> str:
    """A valid expression with the values that the seed chooses in the place of each `H`."""
    words = _split(_expand(expression))
    first = 0 if len(words) > 5 else 1
    return " ".join(_draw(number, word, seed) if "H" in word else word for number, (word, _) in enumerate(words, first))


def _draw(number: int, word: str, seed: str) -> str:
    terms = word.removeprefix("+").split(",")
    for place, term in enumerate(terms):
        if term.startswith("H"):
            base, slash, step = term.partition("/")
            first, last = _FieldReader(_KINDS[number], term, 0, seed)._hash(term, base, int(step or 1), 0)
            terms[place] = f"{first}-{last}/{step}" if slash else str(first)
    return "+" * word.startswith("+") + ",".join(terms)


@lru_cache(maxsize=FIELDS_KEPT)
def _read(number: int, word: str, start: int, seed: str) -> Values:
    """One field. Jobs that share a rule, but for what `H` stands for, share the others."""
    return _FieldReader(_KINDS[number], word, start, seed).read()


def _check_text(expression: object) -> str:
    if not isinstance(expression, str):
        _fail(f"expected text such as '0 3 * * *', not {quote(expression)}", None)
    if len(expression) > EXPRESSION_MAX:
        _fail(f"{len(expression)} characters: expected at most {EXPRESSION_MAX}", EXPRESSION_MAX)
    for position, char in enumerate(expression):
        if not (char == "\t" or " " <= char <= "~"):
            _fail(f"the character {char!a} at position {position} is not allowed in a cron expression", position)
    if not expression.strip():
        _fail("it is empty: expected e.g. '0 3 * * *'", 0)
    return expression


def _expand(text: str) -> str:
    word = text.strip()
    if not word.startswith("@"):
        return text
    name = word.split()[0].lower()
    if name in _REFUSED:
        _fail(f"{name} is refused: {_REFUSED[name]}", text.index("@"))
    if word.lower() not in ALIASES:
        _fail(f"{quote(word)} is not known{nearest(word, ALIASES)}: expected {', '.join(ALIASES)}", text.index("@"))
    return ALIASES[word.lower()]


def _split(text: str) -> list[tuple[str, int]]:
    """The words of a text with their positions, in capitals."""
    found: list[tuple[str, int]] = []
    position = 0
    for word in text.split():
        position = text.index(word, position)
        found.append((word.upper(), position))
        position += len(word)
    return found


def _fail(message: str, position: int | None) -> NoReturn:
    raise InvalidTrigger(f"cron: {message}", field="expression", position=position)


class _FieldReader:
    """Reads one field: terms parted by commas, each adding to the same `Values`."""

    def __init__(self, kind: Kind, text: str, start: int, seed: str) -> None:
        self.kind = kind
        self.start = start
        self.seed = seed
        self.values = Values(text)

    def read(self) -> Values:
        position = self.start
        for term in self.values.text.split(","):
            self._term(term, position)
            position += len(term) + 1
        if self.kind is WEEKDAY and self.values.mask >> 7:
            self.values.mask = self.values.mask & 0x7F | 1
        return self.values

    def _term(self, term: str, position: int) -> None:
        if not term:
            self._refuse(term, position, f"expected {self.kind.expected()}")
        if self.kind is DAY and self._day_term(term, position):
            return
        if self.kind is WEEKDAY and self._weekday_term(term, position):
            return
        base, slash, step_text = term.partition("/")
        step = self._step(step_text, term, position) if slash else 1
        first, last = self._hash(term, base, step, position) if base[:1] == "H" else self._range(base, slash, position)
        for value in range(first, last + 1, step):
            self.values.mask |= 1 << (value - (YEAR_MIN if self.kind is YEAR else 0))

    def _range(self, base: str, slash: str, position: int) -> tuple[int, int]:
        if base == "*":
            return self.kind.low, self.kind.top
        if base == "?":
            if self.kind not in (DAY, WEEKDAY) or slash or self.values.text != "?":
                self._refuse(base, position, "expected ? alone, and only as the day of month or the day of week")
            return self.kind.low, self.kind.top
        first_text, dash, last_text = base.partition("-")
        first = self._value(first_text, base, position)
        if not dash:
            return first, self.kind.top if slash and first <= self.kind.top else first
        last = self._value(last_text, base, position + len(first_text) + 1)
        if self.kind is WEEKDAY and last_text == "SUN" and first > 0:
            last = 7
        if last < first:
            self._refuse(
                base,
                position,
                f"the range runs backwards: write {first_text}-{self.kind.top},{self.kind.low}-{last_text}",
            )
        return first, last

    def _value(self, text: str, term: str, position: int) -> int:
        if text in self.kind.names:
            return self.kind.names[text]
        if not text.isdigit() or len(text) > _DIGITS_MAX or not self.kind.low <= int(text) <= self.kind.high:
            hint = nearest(text.lower(), [n.lower() for n in self.kind.names]).upper() if text.isalpha() else ""
            self._refuse(
                term, position, f"expected {self.kind.expected()}{hint.replace('DID YOU MEAN', 'did you mean')}"
            )
        return int(text)

    def _step(self, text: str, term: str, position: int) -> int:
        most = self.kind.top - self.kind.low
        if not text.isdigit() or len(text) > _DIGITS_MAX or not 1 <= int(text) <= most:
            where = position + term.index("/") + 1
            self._refuse(term, where, f"expected a step from 1 to {most} after the slash")
        return int(text)

    def _hash(self, term: str, base: str, step: int, position: int) -> tuple[int, int]:
        """`H`, `H(8-17)`, with or without a step: one value (or a first one) that the seed chooses for good."""
        low, high = self.kind.low, 28 if self.kind is DAY else self.kind.top
        if self.kind is YEAR:
            self._refuse(term, position, f"H can't choose a year: expected {self.kind.expected()}")
        if base != "H":
            inner = base[2:-1]
            if base[1] != "(" or base[-1] != ")" or "-" not in inner:
                self._refuse(term, position, "expected H, H/STEP, H(FIRST-LAST) or H(FIRST-LAST)/STEP")
            low, high = self._range(inner, "", position + 2)
            high = min(high, self.kind.top)
        digest = blake2b(f"{self.kind.name}\0{self.seed}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big")
        if "/" not in term:
            value = low + drawn % (high - low + 1)
            return value, value
        return low + drawn % min(step, high - low + 1), high

    def _day_term(self, term: str, position: int) -> bool:
        if term == "L":
            self.values.last_back.add(0)
        elif term in ("LW", "WL"):
            self.values.last_workday = True
        elif term.startswith("L-"):
            back = term[2:]
            if not back.isdigit() or len(back) > 2 or not 1 <= int(back) <= LAST_BACK_MAX:
                self._refuse(term, position, f"expected L-1 to L-{LAST_BACK_MAX}")
            self.values.last_back.add(int(back))
        elif term.endswith("W"):
            self.values.near_workdays.add(self._value(term[:-1], term, position))
        else:
            return False
        return True

    def _weekday_term(self, term: str, position: int) -> bool:
        if "#" in term:
            name, _, nth = term.partition("#")
            if nth not in ("1", "2", "3", "4", "5", "L"):
                where = position + len(name) + 1
                self._refuse(term, where, f"expected 1 to {NTH_MAX} after the #, or L for the last")
            self.values.nth.add((self._value(name, term, position) % 7, -1 if nth == "L" else int(nth)))
        elif term.endswith("L"):
            if term == "L":
                self._refuse(term, position, "expected a weekday before L: 5L or FRIL is the last Friday of the month")
            self.values.nth.add((self._value(term[:-1], term, position) % 7, -1))
        else:
            return False
        return True

    def _refuse(self, term: str, position: int, why: str) -> NoReturn:
        _fail(f"{self.kind.name}: {quote(term)} at position {position}: {why}", position)
