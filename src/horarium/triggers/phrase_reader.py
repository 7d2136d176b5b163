"""What is read the same in every clause of a phrase: numbers, lengths of time, days."""

from __future__ import annotations

from datetime import date

from horarium.triggers.phrase_parts import DayRef
from horarium.triggers.phrase_tokens import TokenReader
from horarium.triggers.phrase_words import DAY_NAMES, DAY_PLURALS, MONTH_NAMES, NUMBERS, ORDINALS, UNITS, Token

STEP_MAX = 10_000
"""`every N ...`, `in N ...`."""

WEEKDAY_GROUPS = ("weekday", "weekdays", "weekend", "weekends", "workday", "workdays")


class Reader(TokenReader):
    """What is read the same in every clause."""

    def _starts_day(self, token: Token) -> bool:
        names = (DAY_NAMES, DAY_PLURALS, MONTH_NAMES, ORDINALS)
        return (
            token.kind in ("date", "ordinal")
            or any(token.text in known for known in names)
            or token.text in WEEKDAY_GROUPS
            or (token.kind == "number" and self._peek().text in MONTH_NAMES)
        )

    def _is_weekday(self, token: Token) -> bool:
        known = token.text in DAY_NAMES or token.text in DAY_PLURALS or token.text in WEEKDAY_GROUPS
        return known or self._is_business_day(token)

    def _is_business_day(self, token: Token) -> bool:
        after = self._tokens[token.index + 1].text if token.index + 1 < len(self._tokens) else ""
        return token.text in ("business", "working") and after in ("day", "days")

    # --- days

    def _day(self) -> DayRef:
        self._accept("the")
        return self._day_of(self._take())

    def _day_of(self, token: Token) -> DayRef:
        if token.text in ("today", "tonight", "tomorrow"):
            return DayRef(days=1 if token.text == "tomorrow" else 0)
        if token.text in ("next", "this"):
            name = self._take()
            if token.text == "next" and name.text in ("month", "week"):
                return self._day_of_next(name)
            if name.text not in DAY_NAMES:
                self._fail(name, f"expected a weekday after {token.text!r}")
            return DayRef(weekday=DAY_NAMES[name.text], strict=token.text == "next")
        if token.text in DAY_NAMES:
            return DayRef(weekday=DAY_NAMES[token.text])
        if token.kind == "date":
            year, month, day = map(int, token.text.split("-"))
            return self._checked(token, year, month, day)
        if token.text in MONTH_NAMES:
            number = self._take()
            named = self._day_number(number)
            if named is None:
                self._fail(number, "expected a day of the month, e.g. december 24th")
            return self._checked(token, self._year(), MONTH_NAMES[token.text], named)
        leading = self._day_number(token)
        if leading is not None:
            self._accept("of")
            if self._peek().text == "next" and self._peek(1).text == "month":
                self._at += 2
                return DayRef(months=1, day=leading)
            month_name = self._take()
            if month_name.text not in MONTH_NAMES:
                self._fail(month_name, "expected the name of a month")
            return self._checked(token, self._year(), MONTH_NAMES[month_name.text], leading)
        return self._fail(token, "expected a date such as december 24th, 2026-12-24, tomorrow or next friday")

    def _day_of_next(self, unit: Token) -> DayRef:
        """`next month on the 3rd`, `next week on tuesday`."""
        self._accept("on")
        self._accept("the")
        token = self._peek()
        if unit.text == "week" and token.text in DAY_NAMES:
            return DayRef(weeks=1, weekday=DAY_NAMES[self._take().text])
        day = self._day_number(token)
        if unit.text == "month" and day is not None:
            self._take()
            return DayRef(months=1, day=day)
        example = "next month on the 3rd" if unit.text == "month" else "next week on tuesday"
        return self._refuse(unit, f"which day of next {unit.text}? write e.g. {example!r}")

    def _year(self) -> int | None:
        width = 1 if self._peek().kind == "comma" else 0
        token = self._peek(width)
        if token.kind == "number" and len(token.text) == 4:
            self._at += width + 1
            return int(token.text)
        return None

    def _checked(self, token: Token, year: int | None, month: int, day: int) -> DayRef:
        try:
            date(2000 if year is None else year, month, day)
        except ValueError:
            self._refuse(token, "there is no such date")
        if year is not None and not 1970 <= year <= 2199:
            self._refuse(token, "expected a year from 1970 to 2199")
        return DayRef(year=year, month=month, day=day)

    # --- numbers

    @staticmethod
    def _number(token: Token) -> int | None:
        return int(token.text) if token.kind == "number" else NUMBERS.get(token.text)

    @staticmethod
    def _ordinal(token: Token) -> int | None:
        return int(token.text[:-2]) if token.kind == "ordinal" else ORDINALS.get(token.text)

    def _take_ordinal(self) -> int:
        token = self._take()
        found = self._ordinal(token)
        if found is None or found == 0:
            self._fail(token, "expected first, 2nd, last and so on")
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
        return (self._number(token) is not None and after in UNITS) or (token.text == "a" and after == "half")

    def _half_of(self, unit: str) -> tuple[int, str]:
        halves = {"minute": (30, "second"), "hour": (30, "minute"), "day": (12, "hour")}
        if unit not in halves:
            self._refuse(self._tokens[self._at - 1], f"half a {unit} is no certain time")
        return halves[unit]

    def _duration(self) -> tuple[int, str]:
        if self._accept("half"):
            if not (self._accept("an", "a") and self._accept("hour")):
                self._fail(self._peek(), "expected 'in half an hour'")
            return 30, "minute"
        first = self._take()
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
