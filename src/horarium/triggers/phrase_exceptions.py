"""Exceptions in phrases: `except weekends`, `except on december 25th`, `except the first monday of the month`."""

from __future__ import annotations

from horarium.triggers.phrase_parts import Parts
from horarium.triggers.phrase_rhythms import RhythmReader
from horarium.triggers.phrase_words import LONGEST, MONTH_NAMES, Token


class ExceptionReader(RhythmReader):
    """Reads on which days it does not fire."""

    def _except(self, token: Token) -> None:
        self._once_only("exception", token)
        self._accept("not")
        self._accept("on", "for", "in")
        if self._peek().text in ("between", "from"):
            self._refuse(self._peek(), "does it fire at the end of that? write when it fires, e.g. 'from 6am to 11pm'")
        while True:
            if self._is_weekday(self._peek()):
                recurring = self.parts.recurring
                self._weekday(self.parts.except_weekdays)
                self.parts.recurring = recurring
            elif self._ordinal(self._peek(self._peek().text == "the")) is not None and not self._is_date():
                self._except_days()
            else:
                self._except_date()
            if not self._lists_on(lambda candidate: self._is_weekday(candidate) or self._starts_day(candidate)):
                return

    def _except_days(self) -> None:
        """`the first monday of the month`, read as a rule of its own."""
        parts, seen, begin = self.parts, self._seen, self._at
        self.parts, self._seen = Parts(), set()
        self._ordinals(self._peek())
        parts.except_days.append(self.parts)
        day = any(each.text in ("day", "days") for each in self._tokens[begin : self._at])
        if parts.weekdays and self.parts.month_days and not day:
            token = self._tokens[begin + (self._tokens[begin].text == "the")]
            which = "of these weekdays, or of all days? write e.g. 'except the {0} monday of the month' or '{0} day'"
            self._refuse(token, which.format(token.given))
        self.parts, self._seen = parts, seen

    def _except_date(self) -> None:
        if self._peek().text in MONTH_NAMES and self._day_number(self._peek(1)) is None:
            month = MONTH_NAMES[self._take().text]
            self.parts.except_dates += [f"{month:02}-{day:02}" for day in range(1, LONGEST[month] + 1)]
            return
        token = self._peek()
        day = self._day()
        if not day.month:
            self._refuse(token, "expected weekdays, months or dates such as december 25th")
        yearly = f"{day.month:02}-{day.day:02}"
        self.parts.except_dates.append(yearly if day.year is None else f"{day.year:04}-{yearly}")
