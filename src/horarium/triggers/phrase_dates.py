"""Single days in phrases: `december 24th`, `next friday`, `the last monday of next month`, `two days from tomorrow`."""

from __future__ import annotations

from datetime import date

from horarium.triggers.phrase_parts import DayRef
from horarium.triggers.phrase_reader import Reader
from horarium.triggers.phrase_words import DAY_NAMES, FEASTS, LONGEST, MONTH_NAMES, UNITS, Token


class DateReader(Reader):
    """Reads a day that is named once."""

    def _day(self) -> DayRef:
        self._accept("the")
        return self._day_of(self._take())

    def _day_of(self, token: Token) -> DayRef:
        if token.text in ("today", "tonight", "tomorrow"):
            return DayRef(days=1 if token.text == "tomorrow" else 0)
        if self._day_after_tomorrow(token):
            self._at += 2
            return DayRef(days=2)
        feast = self._feast_at(token)
        if feast is not None:
            self._at += feast[1] - 1
            month, day = FEASTS[feast[0]]
            return DayRef(month=month, day=day, year=self._year())
        if token.text in ("coming", "upcoming"):
            name = self._take()
            if name.text not in DAY_NAMES:
                self._fail(name, f"expected a weekday after {token.text!r}")
            return DayRef(weekday=DAY_NAMES[name.text])
        if token.text in ("next", "this"):
            self._accept("coming", "upcoming")
            name = self._take()
            if token.text == "next" and name.text in ("month", "week", "year"):
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
        self._accept("on", "in")
        self._accept("the")
        token = self._peek()
        if unit.text == "year" and self._starts_day(token):
            named = self._day()
            if named.month and named.year is None:
                return DayRef(years=1, month=named.month, day=named.day)
        if unit.text == "week" and token.text in DAY_NAMES:
            return DayRef(weeks=1, weekday=DAY_NAMES[self._take().text])
        day = self._day_number(token)
        if unit.text == "month" and day is not None:
            self._take()
            return DayRef(months=1, day=day)
        examples = {"month": "next month on the 3rd", "week": "next week on tuesday", "year": "next year on march 3rd"}
        example = examples[unit.text]
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

    def _last_of(self) -> DayRef | None:
        """`the end of the month`, `end of the year`, `year end`: as the end of a phrase."""
        start = 1 if self._peek().text == "the" else 0
        words = [self._peek(start + n).text for n in range(4)]
        if words[0] == "end" and words[1] == "of":
            width = 4 if words[2] in ("the", "this") else 3
            unit = UNITS.get(words[width - 1], "")
            month, year = MONTH_NAMES.get(words[width - 1], 0), self._peek(start + width - 1)
            if month > 0 and month != 2:
                self._at += start + width
                return DayRef(month=month, day=LONGEST[month], year=self._year())
            if year.kind == "number" and len(year.text) == 4:
                self._at += start + width
                return self._checked(year, int(year.text), 12, 31)
        else:
            width, unit = 2, UNITS.get(words[0], "") if words[1] in ("end", "'s end") else ""
        if unit not in ("day", "week", "month", "quarter", "year"):
            return None
        self._at += start + width
        return DayRef(ends=unit)
