"""The grammar of phrases: tokens in, `Parts` out.

A phrase is a row of clauses in any order (`every 2 weeks`, `on monday`, `at 7am`, `in Europe/Berlin`), each begun by a
word of its own and each at most once. The parser reads forward, one token of look-ahead and no recursion, so it is
linear. What it does not know, it refuses with the position: a phrase is understood wholly or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from horarium.triggers.phrase_parts import Parts
from horarium.triggers.phrase_reader import WEEKDAY_GROUPS, Reader
from horarium.triggers.phrase_words import (
    ADVERBS,
    DAY_NAMES,
    DAY_PLURALS,
    LONGEST,
    MONTH_NAMES,
    TIMES,
    UNITS,
    WEEKEND,
    WORKDAYS,
    Token,
    tokens_of,
)

_KNOWN_ZONES = {"utc": "UTC", "gmt": "GMT"}


def read_phrase(text: object) -> Parts:
    """What a phrase says. Raises InvalidTrigger, with the position of the first word that does not fit."""
    return _Parser(tokens_of(text), len(str(text))).parse()


class _Parser(Reader):
    def __init__(self, tokens: list[Token], length: int) -> None:
        super().__init__(tokens, length)
        self.parts = Parts()
        self._clauses: dict[str, Callable[[Token], None]] = {
            **dict.fromkeys(("every", "each"), self._every),
            **dict.fromkeys(ADVERBS, self._adverb),
            **dict.fromkeys(("once", "twice", "thrice"), self._times_a),
            "at": self._at_clause,
            "on": self._on,
            "the": self._ordinals,
            "in": self._in,
            "during": self._in,
            "of": self._of,
            **dict.fromkeys(("between", "from"), self._between),
            **dict.fromkeys(("starting", "beginning", "since"), self._start),
            **dict.fromkeys(("until", "till", "through", "ending"), self._until),
            **dict.fromkeys(("except", "excluding", "but"), self._except),
            **dict.fromkeys(("today", "tomorrow", "tonight", "next", "this"), self._near_day),
        }

    # --- clauses

    def parse(self) -> Parts:
        """Clause after clause, to the last token."""
        while self._peek().kind != "end":
            token = self._take()
            if token.kind == "comma" or (token.text == "and" and 1 < self._at < len(self._tokens)):
                continue
            self._clause(token)
        return self.parts

    def _clause(self, token: Token) -> None:
        clause = self._clauses.get(token.text)
        if clause is not None:
            clause(token)
        elif token.kind == "zone":
            self._zone(token)
        elif self._starts_time(token):
            self._at -= 1
            self._times(token)
        elif self._starts_day(token):
            self._at -= 1
            self._on(token)
        elif token.kind in ("number", "word") and self._peek().text == "times":
            self._times_a(token)
        else:
            self._fail(token, "not understood; expected e.g. every, at, on, in, between, until, except or a time zone")

    def _adverb(self, token: Token) -> None:
        self._once_only("rhythm", token)
        self.parts.unit = ADVERBS[token.text]

    def _every(self, token: Token) -> None:
        first = self._peek()
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
            self._once_only("rhythm", token)
            self._rhythm()

    def _counts_units(self) -> bool:
        """`every third day`, `every second`: an ordinal that counts units, unless `of` makes it a day of something."""
        first, second, third = self._peek(), self._peek(1), self._peek(2)
        if first.text == "last":
            return False
        if first.text == "second" and second.text not in UNITS and self._ordinal(second) is None:
            return second.text not in DAY_NAMES and second.text != "of"
        return second.text in UNITS and third.text not in ("of", "in")

    def _rhythm(self) -> None:
        """`15 minutes`, `other tuesday`, `half hour`, `third day`, `week`."""
        first = self._take()
        if first.text in ("half", "quarter") and self._peek().text in ("hour", "an"):
            self._accept("an")
            self._accept("hour")
            self.parts.unit, self.parts.step = "minute", 30 if first.text == "half" else 15
            return
        if first.text == "other":
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
        elif first.text == "other" and (token.text in DAY_NAMES or token.text in ("weekend", "weekday")):
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
        self._once_only("rhythm", token)
        count = {"once": 1, "twice": 2, "thrice": 3}.get(token.text) or self._number(token)
        self._accept("times")
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
            self._once_only("time of day", token)
            self.parts.times = [(hour, 0, 0) for hour in range(0, 24, 24 // count)]
        elif unit == "hour" and 60 % count == 0:
            self.parts.unit, self.parts.step = "minute", 60 // count
        else:
            self._refuse(token, f"{count} times a {unit} does not divide evenly: name the times or days")

    def _at_clause(self, token: Token) -> None:
        self._accept("the")
        first, second = self._peek(), self._peek(1)
        if first.kind == "past":
            self._minute_past(self._take(), int(first.text[1:]))
        elif first.text in ("half", "quarter") and second.text in ("past", "to"):
            self._at += 2
            minute = 30 if first.text == "half" else 15 if second.text == "past" else 45
            self._hour_word()
            self._minute_past(first, minute)
        elif first.text == "minute" and second.kind == "number":
            self._at += 2
            self._minute_past(second, int(second.text))
        elif first.kind == "number" and second.text in ("past", "minutes"):
            self._at += 2
            self._accept("past", "after")
            self._hour_word()
            self._minute_past(first, int(first.text))
        else:
            self._times(token)

    def _hour_word(self) -> None:
        self._accept("the", "every", "each")
        self._accept("hour")

    def _minute_past(self, token: Token, minute: int) -> None:
        self._once_only("time of day", token)
        if minute > 59:
            self._refuse(token, "expected a minute from 0 to 59")
        self.parts.minute_past = minute

    def _times(self, token: Token) -> None:
        self._once_only("time of day", token)
        found = [self._time()]
        while self._lists_on(self._starts_time):
            found.append(self._time())
        self.parts.times = sorted(set(found))

    def _on(self, token: Token) -> None:
        self._accept("the")
        first = self._peek()
        if first.text in ("hour", "half") and (first.text == "hour" or self._peek(1).text == "hour"):
            self._at += 1 if first.text == "hour" else 2
            self._minute_past(first, 0 if first.text == "hour" else 30)
        elif self._is_weekday(first):
            self._weekdays()
        elif self._ordinal(first) is not None and not self._is_date():
            self._ordinals(token)
        else:
            self._once_only("date", token)
            self.parts.day = self._day()

    def _is_date(self) -> bool:
        """`24th of december`: a date, where `last friday of march` is a rule."""
        first, second, third = self._peek(), self._peek(1), self._peek(2)
        return second.text in MONTH_NAMES or (
            second.text == "of" and third.text in MONTH_NAMES and first.kind == "ordinal"
        )

    def _weekdays(self) -> None:
        self._once_only("list of weekdays", self._peek())
        self._weekday(self.parts.weekdays)
        while self._lists_on(self._is_weekday):
            self._weekday(self.parts.weekdays)

    def _weekday(self, into: set[int]) -> None:
        token = self._take()
        if token.text in DAY_NAMES:
            first = DAY_NAMES[token.text]
            if self._peek().text in ("to", "through") and self._peek(1).text in DAY_NAMES:
                self._at += 1
                last = DAY_NAMES[self._take().text]
                into |= {(first + n) % 7 for n in range((last - first) % 7 + 1)}
                self.parts.recurring = True
            else:
                into.add(first)
        elif token.text in DAY_PLURALS:
            self.parts.recurring = True
            into.add(DAY_PLURALS[token.text])
        elif token.text in WEEKDAY_GROUPS:
            self.parts.recurring = True
            into |= WORKDAYS if token.text.startswith("weekday") else WEEKEND
        else:
            self._fail(token, "expected a weekday")

    def _ordinals(self, token: Token) -> None:
        """`first and third monday of the month`, `1st and 15th`, `last day of every quarter`."""
        self._accept("the")
        start = self._peek()
        found = [self._take_ordinal()]
        while self._lists_on(lambda candidate: self._ordinal(candidate) is not None):
            found.append(self._take_ordinal())
        noun = self._peek()
        self._once_only("list of days", noun)
        self.parts.recurring = True
        if noun.text in DAY_NAMES:
            self._take()
            self._nth_weekday(start, found, DAY_NAMES[noun.text])
        elif noun.text in ("weekday", "working", "business"):
            self._take()
            if noun.text != "weekday" and not self._accept("day", "weekday"):
                self._fail(self._peek(), "expected day")
            if not set(found) <= {1, -1}:
                self._refuse(start, "only the first and the last working day can be named")
            self.parts.workdays |= set(found)
        else:
            self._accept("day", "days")
            if max(found) > 31:
                self._refuse(start, "expected a day from 1st to 31st")
            self.parts.month_days |= set(found)
        self._accept_of()

    def _nth_weekday(self, start: Token, found: list[int], weekday: int) -> None:
        if max(found) > 5:
            self._refuse(start, "expected first to fifth, or last")
        if found == [2] and self._peek().text not in ("of", "in"):
            self._refuse(start, "ambiguous: write 'every other ...' or 'every second ... of the month'")
        self.parts.nth |= {(which, weekday) for which in found}

    def _accept_of(self) -> None:
        if self._accept("of"):
            self._of(self._peek())

    def _of(self, token: Token) -> None:
        """`of the month`, `of every quarter`, `of march and june`."""
        if self._peek().text in MONTH_NAMES:
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
            self._fail(noun, "expected month, quarter, year or the name of a month")
        if self.parts.unit is None:
            self.parts.unit, self.parts.step = UNITS[noun.text], step
        elif self.parts.unit != UNITS[noun.text] or step != 1:
            self._refuse(noun, f"the phrase already recurs every {self.parts.unit}")

    def _months(self, token: Token) -> None:
        self._once_only("list of months", token)
        self.parts.months.add(MONTH_NAMES[self._take().text])
        while self._lists_on(lambda candidate: candidate.text in MONTH_NAMES):
            self.parts.months.add(MONTH_NAMES[self._take().text])

    def _in(self, token: Token) -> None:
        first = self._peek()
        if first.kind == "zone":
            self._zone(self._take())
        elif first.text in MONTH_NAMES:
            self._months(first)
        elif first.text == "the" and UNITS.get(self._peek(1).text) in ("month", "quarter", "year"):
            self._of(first)
        else:
            self._once_only("date", token)
            self.parts.offset = self._offset()

    def _between(self, token: Token) -> None:
        if not self._starts_time(self._peek()) and self._peek().kind != "number" and token.text == "from":
            self._start(token)
            return
        self._once_only("window", token)
        first = self._time()
        if not self._accept("and", "to", "until", "till"):
            self._fail(self._peek(), "expected 'and' and the end of the window")
        last = self._time()
        if last <= first:
            self._refuse(token, "the window ends before it starts")
        self.parts.window = (first, last)

    def _start(self, token: Token) -> None:
        self._once_only("start", token)
        self._accept("on", "from", "at")
        self.parts.start = self._moment()

    def _until(self, token: Token) -> None:
        self._once_only("end", token)
        self._accept("on")
        self.parts.until = self._moment()

    def _except(self, token: Token) -> None:
        self._once_only("exception", token)
        self._accept("not")
        self._accept("on", "for")
        while True:
            if self._is_weekday(self._peek()):
                recurring = self.parts.recurring
                self._weekday(self.parts.except_weekdays)
                self.parts.recurring = recurring
            else:
                self._except_date()
            if not self._lists_on(lambda candidate: self._is_weekday(candidate) or self._starts_day(candidate)):
                return

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

    def _near_day(self, token: Token) -> None:
        self._once_only("date", token)
        self.parts.day = self._day_of(token)

    def _zone(self, token: Token) -> None:
        self._once_only("time zone", token)
        title = re.sub(r"(?<![a-z])[a-z]", lambda letter: letter.group().upper(), token.given)
        self.parts.zone = _KNOWN_ZONES.get(token.text) or (title if token.given == token.text else token.given)
