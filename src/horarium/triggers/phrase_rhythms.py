"""Rhythms in phrases: `every 15 minutes`, `every other tuesday`, `twice a day`, `10 times`."""

from __future__ import annotations

from horarium.triggers.phrase_days import MinuteReader
from horarium.triggers.phrase_words import (
    ADVERBS,
    DAY_NAMES,
    DAY_PARTS,
    DAY_PLURALS,
    MONTH_NAMES,
    TIMES,
    UNITS,
    Token,
)

TIMES_MAX = 1_000
"""`every 5 minutes, 10 times`."""


class RhythmReader(MinuteReader):
    """Reads how often."""

    def _every(self, token: Token) -> None:
        if token.text == "each" and self._peek().text == "and" and self._peek(1).text == "every":
            self._at += 2
        self._accept("single")
        first = self._peek()
        if first.text in ("full", "whole") and self._peek(1).text == "hour":
            self._at += 1
            first = self._peek()
        feast = self._feast_at(first)
        if feast is not None:
            self._once_only("rhythm", token)
            self._once_only("date", first)
            self.parts.unit, self.parts.day = "year", self._day()
            return
        if first.text in DAY_PARTS:
            self._once_only("rhythm", token)
            self.parts.recurring = True
            return
        if first.text in MONTH_NAMES:
            self._once_only("rhythm", token)
            self._every_month(self._take())
        elif self._is_weekday(first):
            self._once_only("rhythm", token)
            self.parts.recurring = True
            self._weekdays()
        elif first.text in TIMES or first.kind == "time":
            self.parts.recurring = True
            self._times(first)
        elif self._ordinal(first) is not None and not self._counts_units():
            self._ordinals(token)
        else:
            self._finer_rhythm()
            self._once_only("rhythm", token)
            self._rhythm()

    def _alternate(self, token: Token) -> None:
        """`alternate fridays`."""
        self._at -= 1
        self._every(token)

    def _all(self, token: Token) -> None:
        """`all weekdays`."""
        if not self._is_weekday(self._peek()) and self._peek().text != "days":
            self._fail(self._peek(), "expected days, e.g. 'every weekday'")
        self._every(token)

    def _period_end(self, token: Token) -> bool:
        """`end of month`, `at the end of every quarter`, `every month end`: its last day. Takes it, if it is here."""
        words = [each.text for each in self._tokens[token.index : token.index + 7]]
        width = 0
        while words[width : width + 1] and words[width] in ("at", "on", "the", "every", "each"):
            width += 1
        every = bool({"every", "each"} & set(words[:width]))
        if words[width : width + 2] == ["end", "of"]:
            width += 2
            article = words[width : width + 1]
            width += article in (["every"], ["each"], ["the"], ["a"], ["this"])
            every = every or article in (["every"], ["each"])
            unit = UNITS.get(words[width] if len(words) > width else "", "")
            if article in (["the"], ["this"]) and not every and unit in ("month", "quarter", "year"):
                self._refuse(token, f"of each {unit}, or of this one? write e.g. 'on the last day of every {unit}'")
            width += 1
        elif words[width + 1 : width + 2] == ["end"]:
            unit = UNITS.get(words[width], "")
            width += 2
        else:
            return False
        if unit not in ("month", "quarter", "year"):
            return False
        self._once_only("rhythm", token)
        self._once_only("list of days", token)
        self.parts.unit, self.parts.recurring, self.parts.month_days = unit, True, {-1}
        self._at = token.index + width
        return True

    def _after_run(self, token: Token) -> None:
        """`after the last run`, `after the end of the last run`, `after the last run has ended`."""
        self._once_only("after", token)
        self._accept("the")
        if self._accept("end"):
            self._expect("of")
            self._accept("the")
        self._expect("last", "previous")
        self._expect("run")
        self._accept("has")
        self._accept("ends", "ended", "finishes", "finished")
        self.parts.from_end = True

    def _delay(self, token: Token) -> bool:
        """`10 minutes after the last run`, without `every`."""
        words = [each.text for each in self._tokens[token.index + 1 : token.index + 5]]
        if self._number(token) is None or words[:1] == [] or words[0] not in UNITS or words[1:2] != ["after"]:
            return False
        if not {"run", "last", "previous", "end"} & set(words[2:]):
            return False
        self._once_only("rhythm", token)
        self.parts.step = self._bounded(token, self._number(token) or 0)
        self.parts.unit = UNITS[self._take().text]
        return True

    def _expect(self, *words: str) -> None:
        if not self._accept(*words):
            self._fail(self._peek(), f"expected {words[0]!r}, as in 'after the end of the last run'")

    def _adverb(self, token: Token) -> None:
        self._once_only("rhythm", token)
        if token.text == "fortnightly":
            self.parts.unit, self.parts.step = "week", 2
            return
        self.parts.unit = ADVERBS[token.text]

    def _finer_rhythm(self) -> None:
        """`every day from 9 to 18 every 30 minutes`: the finer rhythm is meant."""
        unit = UNITS.get(self._peek(1).text, UNITS.get(self._peek().text))
        if (self.parts.unit, self.parts.step) == ("day", 1) and unit in ("hour", "minute", "second"):
            self._seen.discard("rhythm")

    def _counts_units(self) -> bool:
        """`every third day`, `every second`: an ordinal that counts units, unless `of` makes it a day of something."""
        first, second, third = self._peek(), self._peek(1), self._peek(2)
        if first.text == "last" or second.text == "last" or (second.text == "to" and third.text == "last"):
            return False
        if first.text == "second" and second.text not in UNITS and self._ordinal(second) is None:
            return second.text not in DAY_NAMES and second.text != "of"
        return second.text in UNITS and third.text not in ("of", "in")

    def _rhythm(self) -> None:
        """`15 minutes`, `other tuesday`, `half hour`, `third day`, `week`."""
        first = self._take()
        if first.kind == "decimal":
            self.parts.step, self.parts.unit = self._with_fraction(first)
            return
        if first.text in ("half", "quarter") and self._peek().text in ("hour", "an"):
            self._accept("an")
            self._accept("hour")
            self.parts.unit, self.parts.step = "minute", 30 if first.text == "half" else 15
            return
        if first.text == "fortnight":
            self.parts.unit, self.parts.step = "week", 2
            return
        if first.text in ("other", "alternate"):
            self.parts.step = 2
        elif first.text in UNITS and not (first.text == "second" and self._peek().text in UNITS):
            self.parts.unit = UNITS[first.text]
            return
        elif self._number(first) is not None or self._ordinal(first) is not None:
            self.parts.step = self._bounded(first, self._number(first) or self._ordinal(first) or 0)
        else:
            self._fail(first, "expected a number, a unit such as minutes or a weekday after 'every'")
        self._rhythm_unit(first)

    def _rhythm_unit(self, first: Token) -> None:
        token = self._peek()
        if token.text in UNITS:
            self.parts.unit = UNITS[self._take().text]
        elif first.text in ("other", "alternate") and (
            token.text in DAY_NAMES or token.text in DAY_PLURALS or token.text in ("weekend", "weekday")
        ):
            if token.text == "weekday":
                self._refuse(
                    token, "every other weekday is ambiguous: name the days, e.g. every monday, wednesday and friday"
                )
            self.parts.unit = "week"
            self._weekdays()
        else:
            self._fail(token, "expected a unit: seconds, minutes, hours, days, weeks, months, quarters or years")

    def _every_month(self, token: Token) -> None:
        self.parts.unit = "year"
        self.parts.months.add(MONTH_NAMES[token.text])
        day = self._day_number(self._peek())
        if day is not None:
            self._take()
            self.parts.month_days.add(day)

    def _times_a(self, token: Token) -> None:
        if token.text not in ("once", "twice", "thrice") and not self._divides_a_unit():
            self._limit(token)
            return
        if token.text in ("twice", "thrice") and self._peek().kind in ("comma", "end"):
            self._once_only("number of times or length", token)
            self.parts.count = 2 if token.text == "twice" else 3
            return
        if token.text == "once" and not self._divides_from(self._peek()):
            self._said_once = True
            return
        self._once_only("rhythm", token)
        count = {"once": 1, "twice": 2, "thrice": 3}.get(token.text) or self._number(token)
        self._accept("times")
        if count == 1 and self._peek().text in ("every", "each") and self._peek(1).text not in UNITS:
            self._at += 1
            self._rhythm()
            return
        adverb = ADVERBS.get(self._peek().text)
        if adverb is None and not self._accept("a", "an", "per", "each", "every"):
            self._fail(self._peek(), "expected e.g. a day")
        unit = adverb or UNITS.get(self._peek().text)
        last = self._take()
        if unit is None or count is None:
            self._fail(last, "expected day, hour, week, month or year")
        if count == 1:
            self.parts.unit = unit
        elif unit == "day" and 24 % count == 0:
            self.parts.unit = "day"
            self._times_a_day = (token, count)
        elif unit == "hour" and 60 % count == 0:
            self.parts.unit, self.parts.step = "minute", 60 // count
        elif unit in ("week", "month"):
            self.parts.unit, self._days_a = unit, (token, count)
        else:
            self._refuse(token, f"{count} times a {unit} does not divide evenly: name the times or days")

    def _divides_a_unit(self) -> bool:
        """`3 times a day`, where `3 times` by itself, or before `every 5 minutes`, is a limit."""
        after, then = self._peek(1).text, self._peek(2)
        if after in ("each", "every") and UNITS.get(then.text) not in ("day", "hour", "week", "month", "year"):
            return False
        return after in ("a", "an", "per", "each", "every") or after in ADVERBS

    def _divides_from(self, token: Token) -> bool:
        """`once a week`, `once daily`, `once every 3 hours`, where `once` by itself is a limit."""
        return token.text in ("a", "an", "per", "each", "every") or token.text in ADVERBS

    def _limit(self, token: Token) -> None:
        """`10 times`."""
        self._once_only("number of times or length", token)
        self._accept("times")
        count = self._number(token) or 0
        if not 1 <= count <= TIMES_MAX:
            self._refuse(token, f"expected 1 to {TIMES_MAX} times")
        self.parts.count = count

    def _next_days(self, token: Token) -> bool:
        """`the next 5 fridays`, `the next 3 days`: after `next`."""
        number, noun = self._peek(), self._peek(1)
        count = self._number(number)
        if token.text != "next" or count is None:
            return False
        if noun.text not in DAY_PLURALS and noun.text not in ("days", "weekdays"):
            return False
        self._once_only("number of times or length", token)
        self._take()
        if noun.text in DAY_PLURALS:
            self.parts.count = self._bounded(number, count)
            self._weekdays()
            return True
        self._once_only("rhythm", token)
        if noun.text == "weekdays":
            self.parts.count = self._bounded(number, count)
            self._weekdays()
            return True
        unit = UNITS[self._take().text]
        self.parts.unit, self.parts.lasting = unit, (self._bounded(number, count), unit)
        return True
