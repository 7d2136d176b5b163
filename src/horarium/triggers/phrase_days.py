"""Lists of days in phrases: `mondays and thursdays`, `mon-fri`, `1st and 15th`, `last business day of each quarter`."""

from __future__ import annotations

from horarium.triggers.phrase_parts import WEEKEND, WORKDAYS, DayRef
from horarium.triggers.phrase_reader import WEEKDAY_GROUPS
from horarium.triggers.phrase_times import TimeReader
from horarium.triggers.phrase_words import DAY_NAMES, DAY_PLURALS, MONTH_NAMES, QUARTERS, RANGE_WORDS, UNITS, Token


class DayReader(TimeReader):
    """Reads weekdays, days of the month, and of which months."""

    def _is_date(self) -> bool:
        """`24th of december`: a date, where `last friday of march` is a rule."""
        first, second, third = self._peek(), self._peek(1), self._peek(2)
        if second.text == "of" and third.text in ("next", "this") and self._peek(3).text == "month":
            return first.kind == "ordinal"
        return second.text in MONTH_NAMES or (
            second.text == "of" and third.text in MONTH_NAMES and first.kind == "ordinal"
        )

    def _weekdays(self) -> None:
        self._once_only("list of weekdays", self._peek())
        self._weekday(self.parts.weekdays)
        while self._lists_on(self._is_weekday) or self._goes_on():
            self._weekday(self.parts.weekdays)

    def _goes_on(self) -> bool:
        """`mon wed fri`, `every monday and every thursday`."""
        if self._peek().text in DAY_NAMES or self._peek().text in DAY_PLURALS:
            return True
        width = 0
        while width < 2 and (self._peek(width).kind == "comma" or self._peek(width).text == "and"):
            width += 1
        every = self._peek(width).text in ("every", "each") and not self.parts.sub_daily
        if width and every and self._peek(width + 1).text in DAY_NAMES:
            self._at += width + 1
            return True
        return False

    def _weekday(self, into: set[int]) -> None:
        token = self._take()
        first = DAY_NAMES.get(token.text, DAY_PLURALS.get(token.text))
        if first is not None:
            self.parts.recurring = self.parts.recurring or token.text in DAY_PLURALS
            into |= self._days_from(first)
        elif token.text in WEEKDAY_GROUPS:
            self.parts.recurring = True
            into |= WEEKEND if token.text.startswith("weekend") else WORKDAYS
        elif token.text in ("business", "working") and self._accept("day", "days"):
            self.parts.recurring = True
            into |= WORKDAYS
        else:
            self._fail(token, "expected a weekday")

    def _days_from(self, first: int) -> set[int]:
        """`monday`, or `monday to friday`."""
        last = DAY_NAMES.get(self._peek(1).text, DAY_PLURALS.get(self._peek(1).text))
        if last is None or self._peek().text not in RANGE_WORDS:
            return {first}
        self._at += 2
        self.parts.recurring = True
        return {(first + n) % 7 for n in range((last - first) % 7 + 1)}

    def _ordinals(self, token: Token) -> None:
        """`first and third monday of the month`, `1st and 15th`, `last day of every quarter`."""
        self._accept("the")
        start = self._peek()
        found = self._ordinal_range()
        while self._lists_on(lambda candidate: self._ordinal(candidate) is not None):
            found += self._ordinal_range()
        if found in ([1], [-1]) and self._number(self._peek()) and self._peek(1).text == "days":
            found = self._some_days(found[0])
        noun = self._peek()
        self._once_only("list of days", noun)
        if self._of_one_month(start, found):
            return
        self.parts.recurring = True
        if noun.text in DAY_NAMES:
            self._take()
            self._nth_weekday(start, found, DAY_NAMES[noun.text])
        elif noun.text in ("weekday", "workday", "working", "business"):
            self._take()
            if noun.text in ("working", "business") and not self._accept("day", "weekday"):
                self._fail(self._peek(), "expected day")
            if max(found) > 20 or min(found) < -1:
                self._refuse(start, "expected the first to the 20th, or the last: every month has those")
            self.parts.workdays |= set(found)
        else:
            self._accept("day", "days")
            if min(found) < -7:
                self._refuse(start, "expected the last to the seventh to last day")
            if max(found) > 31:
                self._refuse(start, "expected a day from 1st to 31st")
            self.parts.month_days |= set(found)
        if self._peek().text == "before":
            self._refuse(start, "is that one day? write its date, or 'of the month' for each month's")
        self._accept_of()

    def _some_days(self, first: int) -> list[int]:
        """`the last 3 days of the month`, of which the noun is still to come."""
        token = self._take()
        count = self._number(token) or 0
        if not 1 <= count <= 7:
            self._refuse(token, "expected up to seven days")
        if self._peek(1).text not in ("of", "in"):
            self._refuse(token, "days of what? write e.g. 'the last 3 days of the month'")
        return [first * n for n in range(1, count + 1)]

    def _of_one_month(self, start: Token, found: list[int]) -> bool:
        """`the last friday of next month`, `the first day of next month`: a single day."""
        noun, words = self._peek(), [self._peek(n).text for n in range(1, 4)]
        if words[0] != "of" or words[1] not in ("next", "this") or words[2] != "month" or len(found) != 1:
            return False
        if noun.text not in DAY_NAMES and noun.text != "day":
            return False
        self._once_only("date", start)
        self._at += 4
        months = 1 if words[1] == "next" else 0
        self.parts.day = DayRef(months=months, which=found[0], weekday=DAY_NAMES.get(noun.text))
        return True

    def _ordinal_range(self) -> list[int]:
        """`1st`, or `1st to 5th`."""
        start = self._peek()
        first = self._take_ordinal()
        width = 2 if self._peek(1).text == "the" else 1
        if self._peek().text not in (*RANGE_WORDS, "and") or self._ordinal(self._peek(width)) is None:
            return [first]
        if self._peek().text == "and" and not self._between_days:
            return [first]
        self._at += width
        last = self._take_ordinal()
        if not 1 <= first < last:
            self._refuse(start, "the range of days runs backwards")
        return list(range(first, last + 1))

    def _nth_weekday(self, start: Token, found: list[int], weekday: int) -> None:
        if max(found) > 5 or min(found) < -4:
            self._refuse(start, "expected first to fifth, or last to fourth to last")
        if found == [2] and self._peek().text not in ("of", "in"):
            self._refuse(start, "ambiguous: write 'every other ...' or 'every second ... of the month'")
        self.parts.nth |= {(which, weekday) for which in found}

    def _accept_of(self) -> None:
        if self._accept("of"):
            self._of(self._peek())

    def _of(self, token: Token) -> None:
        """`of the month`, `of every quarter`, `of march and june`."""
        if self._is_month(self._peek()):
            self._months(self._peek())
            return
        stepped = self._accept("every", "each")
        if not stepped:
            self._accept("the", "a")
        step = 1
        if stepped and self._accept("other"):
            step = 2
        elif stepped and self._number(self._peek()):
            number = self._take()
            step = self._bounded(number, self._number(number) or 0)
        noun = self._take()
        if UNITS.get(noun.text) not in ("month", "quarter", "year"):
            if noun.text == "an":
                self._refuse(noun, "of an hour? write 'every 15 minutes'")
            self._fail(noun, "expected month, quarter, year or the name of a month")
        if self.parts.unit is None:
            self.parts.unit, self.parts.step = UNITS[noun.text], step
        elif self.parts.unit != UNITS[noun.text] or step != 1:
            self._refuse(noun, f"the phrase already recurs every {self.parts.unit}")

    def _months(self, token: Token) -> None:
        self._once_only("list of months", token)
        self._some_months()
        while self._lists_on(self._is_month):
            self._some_months()

    @staticmethod
    def _is_month(token: Token) -> bool:
        return token.text in MONTH_NAMES or token.text in QUARTERS

    def _some_months(self) -> None:
        """`march`, `march to june`, `november through february`, `q1`."""
        token = self._take()
        if token.text in QUARTERS:
            self.parts.months |= set(QUARTERS[token.text])
            return
        first = last = MONTH_NAMES[token.text]
        if self._peek().text in (*RANGE_WORDS, "and") and self._is_range_of_months(token):
            self._at += 1
            last = MONTH_NAMES[self._take().text]
        self.parts.months |= {(first - 1 + n) % 12 + 1 for n in range((last - first) % 12 + 1)}

    def _is_range_of_months(self, first: Token) -> bool:
        """`january to march`, `between april and september`; no days, no year."""
        word, last, after = (self._after(first, ahead) for ahead in (1, 2, 3))
        joins = word.text in RANGE_WORDS or (word.text == "and" and self._between_months)
        dated = after.kind == "ordinal" or (after.kind == "number" and not self._starts_time(after))
        return first.text in MONTH_NAMES and joins and last.text in MONTH_NAMES and not dated


class MinuteReader(DayReader):
    """Reads at which minutes of the hour."""

    def _past_the_hour(self) -> bool:
        """`half past`, `a quarter to the hour`, `minute 15`, `15 minutes past the hour`."""
        start = 1 if self._peek().text == "a" else 0
        first, second = self._peek(start), self._peek(start + 1)
        if first.text in ("half", "quarter") and second.text in ("past", "to"):
            minute = 30 if first.text == "half" else 15 if second.text == "past" else 45
        elif first.text == "minute" and second.kind == "number":
            first, minute = second, int(second.text)
        elif self._number(first) is not None and (second.text in ("past", "to") or UNITS.get(second.text) == "minute"):
            minute = self._number(first) or 0
            word = self._peek(start + 2).text if UNITS.get(second.text) else second.text
            minute = (60 - minute) % 60 if word in ("before", "to") else minute
        else:
            return False
        self._at += start + 2
        self._accept("past", "after", "before", "to", "of")
        self._hour_word()
        self._minute_past(first, minute)
        return True

    def _past_hour_at(self, token: Token) -> bool:
        """Whether `10 minutes past every hour`, `quarter to the hour`, `the top of the hour` begins here."""
        at = token.index + (token.text in ("a", "the"))
        words = [each.text for each in self._tokens[at : at + 6]]
        if words[:1] == ["minute"]:
            words = words[1:]
        elif len(words) > 1 and UNITS.get(words[1]) == "minute":
            words = [words[0], *words[2:]]
        if words[:2] == ["top", "of"]:
            return words[3:4] == ["hour"]
        if words[1:2] == [] or words[1] not in ("past", "after", "before", "to", "of"):
            return False
        return words[2:4] in (["the", "hour"], ["every", "hour"], ["each", "hour"])

    def _past_hour(self) -> None:
        self._accept("the")
        token = self._peek()
        if self._accept("top"):
            self._accept("of")
            self._hour_word()
            self._minute_past(token, 0)
        elif not self._past_the_hour():
            self._fail(token, "expected e.g. '10 minutes past the hour'")

    def _hour_word(self) -> None:
        every = self._peek().text in ("every", "each")
        self._accept("the", "every", "each")
        if self._accept("hour") and every and self.parts.unit is None:
            self.parts.unit = "hour"
            self._seen.add("rhythm")

    def _minute_past(self, token: Token, minute: int) -> None:
        self._once_only("time of day", token)
        self._add_minute(token, minute)
        while self._lists_on(lambda candidate: candidate.kind == "past"):
            past = self._take()
            self._add_minute(past, int(past.text[1:]))

    def _add_minute(self, token: Token, minute: int) -> None:
        if minute > 59:
            self._refuse(token, "expected a minute from 0 to 59")
        self.parts.minutes_past.append(minute)
