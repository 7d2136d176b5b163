"""Parts that are read the same in every clause of a phrase: numbers, lengths of time, what a day may begin with."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from difflib import get_close_matches
from typing import NoReturn

from horarium.errors import InvalidTrigger
from horarium.triggers.phrase_questions import QUESTIONS, half_before
from horarium.triggers.phrase_words import (
    DAY_NAMES,
    DAY_PLURALS,
    FEASTS,
    MONTH_NAMES,
    NUMBERS,
    ORDINALS,
    UNITS,
    VOCABULARY,
    Token,
)
from horarium.triggers.words import quote


class TokenReader:
    """Reads a row of tokens from left to right."""

    def __init__(self, tokens: list[Token], length: int) -> None:
        self._tokens = tokens
        self._at = 0
        self._end = Token("end", "", "", length, len(tokens))
        self._seen: set[str] = set()

    def _peek(self, ahead: int = 0) -> Token:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else self._end

    def _take(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, *words: str) -> bool:
        if self._peek().text in words:
            self._at += 1
            return True
        return False

    def _fail(self, token: Token, expected: str) -> NoReturn:
        after = self._tokens[token.index + 1] if token.index + 1 < len(self._tokens) else token
        if token.text == "half" and after.kind == "number" and 0 < int(after.text) < 13:
            self._refuse(token, half_before(after.text))
        if token.kind == "word" and token.text in QUESTIONS:
            self._refuse(token, QUESTIONS[token.text])
        what = "the phrase ends" if token.kind == "end" else f"{quote(token.given)} at position {token.position}"
        joiner = " where" if token.kind == "end" else ":"
        expected += self._meant(token)
        raise InvalidTrigger(f"text: {what}{joiner} {expected}", field="text", position=token.position)

    @staticmethod
    def _meant(token: Token) -> str:
        """` (did you mean 'tuesday'?)`, for a word that is nearly one of ours."""
        near = get_close_matches(token.text, VOCABULARY, n=1, cutoff=0.75) if len(token.text) > 3 else []
        return f" (did you mean {near[0]!r}?)" if near and near[0] != token.text else ""

    def _refuse(self, token: Token, why: str) -> NoReturn:
        raise InvalidTrigger(
            f"text: {quote(token.given)} at position {token.position}: {why}", field="text", position=token.position
        )

    def _once_only(self, what: str, token: Token) -> None:
        if what in self._seen:
            self._refuse(token, f"a second {what}; a phrase says it once")
        self._seen.add(what)

    def _lists_on(self, fits: Callable[[Token], bool]) -> bool:
        """Takes `,`, `and` or `, and` if what follows it fits, i.e. if the list goes on."""
        width = 0
        while width < 2 and (self._peek(width).kind == "comma" or self._peek(width).text in ("and", "or", "&")):
            width += 1
        extra = 1 if self._peek(width).text in ("at", "on", "the") and width else 0
        if width and fits(self._peek(width + extra)):
            self._at += width + extra
            return True
        return False


STEP_MAX = 10_000
"""`every N ...`, `in N ...`."""

WEEKDAY_GROUPS = ("weekday", "weekdays", "weekend", "weekends", "workday", "workdays")


_FINER = {
    "minute": ("minute", "second", 60),
    "hour": ("hour", "minute", 60),
    "day": ("day", "hour", 24),
    "week": ("week", "day", 7),
}


class Reader(TokenReader):
    """The parts that every clause shares."""

    def _starts_day(self, token: Token) -> bool:
        names = (DAY_NAMES, DAY_PLURALS, MONTH_NAMES, ORDINALS)
        return (
            token.kind in ("date", "ordinal")
            or any(token.text in known for known in names)
            or token.text in (*WEEKDAY_GROUPS, "penultimate")
            or (token.kind == "number" and self._peek().text in MONTH_NAMES)
            or self._feast_at(token) is not None
            or self._day_after_tomorrow(token)
        )

    def _feast_at(self, token: Token) -> tuple[str, int] | None:
        """A day of the year by its name, and how many words that is."""
        words = [each.text for each in self._tokens[token.index : token.index + 3]]
        for width in range(len(words), 0, -1):
            if " ".join(words[:width]) in FEASTS:
                return " ".join(words[:width]), width
        return None

    def _day_after_tomorrow(self, token: Token) -> bool:
        words = [each.text for each in self._tokens[token.index : token.index + 3]]
        return words == ["day", "after", "tomorrow"]

    def _is_weekday(self, token: Token) -> bool:
        known = token.text in DAY_NAMES or token.text in DAY_PLURALS or token.text in WEEKDAY_GROUPS
        return known or self._is_business_day(token)

    def _is_business_day(self, token: Token) -> bool:
        after = self._tokens[token.index + 1].text if token.index + 1 < len(self._tokens) else ""
        return token.text in ("business", "working") and after in ("day", "days")

    # --- numbers

    @staticmethod
    def _number(token: Token) -> int | None:
        return int(token.text) if token.kind == "number" else NUMBERS.get(token.text)

    @staticmethod
    def _ordinal(token: Token) -> int | None:
        if token.text == "penultimate":
            return -2
        return int(token.text[:-2]) if token.kind == "ordinal" else ORDINALS.get(token.text)

    def _take_ordinal(self) -> int:
        """`first`, `2nd`, `last`, `second to last`."""
        token = self._take()
        if token.text == "penultimate":
            return -2
        found = self._ordinal(token)
        if found is None or found == 0:
            self._fail(token, "expected first, 2nd, last and so on")
        if found > 1 and self._peek().text == "to" and self._peek(1).text == "last":
            self._at += 2
            return -found
        if found > 1 and self._peek().text == "last":
            self._at += 1
            return -found
        return found

    def _day_number(self, token: Token) -> int | None:
        found = self._ordinal(token) if token.text not in ORDINALS else ORDINALS[token.text]
        found = int(token.text) if token.kind == "number" and len(token.text) <= 2 else found
        return found if found is not None and 1 <= found <= 31 else None

    def _bounded(self, token: Token, count: int) -> int:
        if not 1 <= count <= STEP_MAX:
            self._refuse(token, f"expected a number from 1 to {STEP_MAX}")
        return count

    def _offset(self) -> list[tuple[int, str]]:
        """`20 minutes`, `an hour`, `half an hour`, `2 hours and 30 minutes`, `an hour and a half`."""
        found = [self._duration()]
        while self._lists_on(self._starts_duration) or self._starts_duration(self._peek()):
            if self._accept("a"):
                self._take()
                found.append(self._half_of(found[-1][1]))
            else:
                found.append(self._duration())
        return found

    def _starts_duration(self, token: Token) -> bool:
        """A number and a unit, or `a half`."""
        after = self._tokens[token.index + 1].text if token.index + 1 < len(self._tokens) else ""
        counts = self._number(token) is not None or token.kind == "decimal"
        return (counts and after in UNITS) or (token.text == "a" and after == "half")

    def _half_of(self, unit: str) -> tuple[int, str]:
        halves = {"minute": (30, "second"), "hour": (30, "minute"), "day": (12, "hour")}
        if unit not in halves:
            self._refuse(self._tokens[self._at - 1], f"half a {unit} is no certain time")
        return halves[unit]

    def _with_fraction(self, first: Token) -> tuple[int, str]:
        """`1.5 hours`, `two and a half hours`: in the next smaller unit."""
        if first.kind == "decimal":
            share = Decimal(first.text)
        else:
            self._at += 3
            share = Decimal(self._number(first) or 0) + Decimal("0.5")
        unit = self._take()
        name, finer, size = _FINER.get(UNITS.get(unit.text, ""), ("", "", 0))
        count = share * size
        if not name or count != int(count):
            self._refuse(unit, "write it in whole minutes, hours or days")
        return self._bounded(first, int(count)), finer

    def _duration(self) -> tuple[int, str]:
        if self._accept("half"):
            if not (self._accept("an", "a") and self._accept("hour")):
                self._fail(self._peek(), "expected 'in half an hour'")
            return 30, "minute"
        first = self._take()
        if first.kind == "decimal" or [self._peek(n).text for n in range(3)] == ["and", "a", "half"]:
            return self._with_fraction(first)
        count = 1 if first.text in ("a", "an") else self._number(first)
        if count is None:
            self._fail(
                first, "expected a number and a unit (in 20 minutes), a month or a time zone such as Europe/Berlin"
            )
        unit = self._take()
        if unit.text in ("fortnight", "fortnights"):
            return self._bounded(first, 2 * count), "week"
        if unit.text not in UNITS or UNITS[unit.text] == "quarter":
            self._fail(unit, "expected a unit: seconds, minutes, hours, days, weeks, months or years")
        return self._bounded(first, count), UNITS[unit.text]
