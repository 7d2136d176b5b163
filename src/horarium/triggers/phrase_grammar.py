"""The grammar of phrases: tokens in, `Parts` out.

A phrase is a row of clauses in any order (`every 2 weeks`, `on monday`, `at 7am`, `in Europe/Berlin`), each begun by a
word of its own and each at most once. The parser reads forward, one token of look-ahead and no recursion, so it is
linear. What it does not know, it refuses with the position: a phrase is understood wholly or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from horarium.errors import InvalidTrigger
from horarium.triggers.phrase_calendars import without_calendar
from horarium.triggers.phrase_exceptions import ExceptionReader
from horarium.triggers.phrase_parts import MIDNIGHT, DayRef, Moment, Parts
from horarium.triggers.phrase_wall import DAY_SECONDS, SECONDS
from horarium.triggers.phrase_words import (
    ADVERBS,
    DAY_NAMES,
    DAY_PARTS,
    FILLERS,
    MONTH_NAMES,
    RANGE_WORDS,
    UNITS,
    ZONE_NAMES,
    Token,
    city_zone,
    tokens_of,
)
from horarium.triggers.words import quote

CITY_WORDS_MAX = 4
RHYTHMS_MAX = 3
JOINTS_MAX = 8
"""At how many places a phrase is tried as two."""

_KNOWN_ZONES = {"utc": "UTC", "gmt": "GMT"}


def read_phrase(text: object) -> Parts:
    """The content of a phrase. Raises InvalidTrigger, with the position of the first word that does not fit."""
    rest, calendar = without_calendar(text) if isinstance(text, str) else (text, None)
    parts = _read(rest)
    if calendar is not None:
        for each in [each for each in parts.each if each.on_business_days] or parts.each:
            each.calendar = calendar
    return parts


def _read(text: object) -> Parts:
    tokens = tokens_of(text)
    try:
        return _Parser(tokens, len(str(text))).parse()
    except InvalidTrigger as error:
        found = _two_rhythms(tokens, len(str(text)), RHYTHMS_MAX)
        if found is not None:
            return found
        raise _with_understood(error, str(text)) from None


def _two_rhythms(tokens: list[Token], length: int, rhythms_max: int) -> Parts | None:
    """`every monday at 9am and every saturday at noon`: two phrases, each of which is whole. None if it is not that.
    Raises InvalidTrigger where an end or an exception may belong to one or to both."""
    joints = [token.index for token in tokens if token.kind == "comma" or token.text in ("and", "plus")]
    for at in joints[:JOINTS_MAX]:
        rest = at + 1
        while rest < len(tokens) and (tokens[rest].kind == "comma" or tokens[rest].text in ("and", "also")):
            rest += 1
        first, second = _whole(tokens[:at], length), _whole(tokens[rest:], length)
        if second is None and rhythms_max > 2 and first is not None and rest < len(tokens):
            second = _two_rhythms(_renumbered(tokens[rest:]), length, rhythms_max - 1)
        if first is None or second is None:
            continue
        if any(map(_limited, [*first.each, *second.each])) or (second.months and not first.months):
            why = "does its start, end, exception or month hold for both? make two jobs of it"
            raise InvalidTrigger(f"text: {why}", field="text", position=tokens[rest].position)
        zones = {each.zone for parts in (first, second) for each in parts.each} - {None}
        if len(zones) > 1 or first.zone:
            why = "is that time zone meant for both? write it once, at the end"
            raise InvalidTrigger(f"text: {why}", field="text", position=tokens[rest].position)
        first.zone = next(iter(zones), None)
        first.also = second
        return first
    return None


def _limited(parts: Parts) -> bool:
    """Whether it says anything that may be meant for a rhythm beside it too."""
    return bool(parts.excepts or parts.start or parts.until or parts.count or parts.lasting or parts.from_end)


def _whole(tokens: list[Token], length: int) -> Parts | None:
    """A recurring phrase that says at what time, or None."""
    if not tokens:
        return None
    try:
        parts = _Parser(_renumbered(tokens), length).parse()
    except InvalidTrigger:
        return None
    timed = bool(parts.times or parts.minutes_past or parts.window) or parts.sub_daily
    recurs = parts.unit is not None or parts.recurring
    return parts if timed and recurs and not parts.once else None


def _renumbered(tokens: list[Token]) -> list[Token]:
    return [replace(token, index=index) for index, token in enumerate(tokens)]


def _with_understood(error: InvalidTrigger, text: str) -> InvalidTrigger:
    """The error, with the understood part before its place."""
    before = text[: error.position or 0].strip(" ,")
    said = f"{error.message} (understood so far: {quote(before)})" if before else error.message
    return InvalidTrigger(said, field=error.field, position=error.position)


class _Parser(ExceptionReader):
    def __init__(self, tokens: list[Token], length: int) -> None:
        super().__init__(tokens, length)
        self._clauses: dict[str, Callable[[Token], None]] = {
            **dict.fromkeys(("every", "each"), self._every),
            **dict.fromkeys((*ADVERBS, "fortnightly"), self._adverb),
            "alternate": self._alternate,
            "all": self._all,
            "before": self._before,
            **dict.fromkeys(("once", "twice", "thrice"), self._times_a),
            "at": self._at_clause,
            "on": self._on,
            "the": self._on,
            "for": self._for,
            **dict.fromkeys(DAY_PARTS, self._day_part),
            "in": self._in,
            "during": self._in,
            "of": self._of,
            "after": self._after_run,
            **dict.fromkeys(("between", "from"), self._between),
            **dict.fromkeys(("starting", "beginning", "since"), self._start),
            **dict.fromkeys(("until", "till", "through", "ending"), self._until),
            **dict.fromkeys(("except", "excluding", "but"), self._except),
            **dict.fromkeys(("today", "tomorrow", "next", "this"), self._near_day),
            "tonight": self._tonight,
            **dict.fromkeys(("coming", "upcoming"), self._near_day),
            **dict.fromkeys(("early", "late"), self._early),
            **dict.fromkeys(FILLERS, lambda token: None),
        }

    # --- clauses

    def parse(self) -> Parts:
        """Clause after clause, to the last token."""
        while self._peek().kind != "end":
            token = self._take()
            if token.kind == "comma" or (token.text == "and" and 1 < self._at < len(self._tokens)):
                continue
            self._clause(token)
        self._settle_times()
        if self._said_once and not self.parts.once:
            self.parts.count = 1
        return self.parts

    def _clause(self, token: Token) -> None:
        clause = self._clauses.get(token.text)
        if self._period_end(token):
            return
        if self._feast_at(token) is not None or self._day_after_tomorrow(token):
            self._near_day(token)
        elif self._past_hour_at(token):
            self._at -= 1
            self._past_hour()
        elif clause is not None:
            clause(token)
        elif token.kind == "zone":
            self._zone(token)
        elif self._delay(token):
            return
        elif self._from_now(token):
            self._at -= 1
            self._from_now_clause(token)
        elif self._starts_window(token):
            self._at -= 1
            self._between_times(token)
        elif self._starts_time(token) or self._shift_at(token) is not None:
            self._at -= 1
            self._times(token)
        elif self._starts_day(token) or self._is_business_day(token):
            self._at -= 1
            self._on(token)
        elif token.kind in ("number", "word") and self._peek().text == "times":
            self._times_a(token)
        elif not self._city(token, "time") and not self._known_zone(token):
            self._fail(token, "not understood; expected e.g. every, at, on, in, between, until, except or a time zone")

    def _from_now(self, token: Token) -> bool:
        """`a week from now`, `2 hours and 30 minutes from now`."""
        if self._number(token) is None and token.text not in ("a", "an", "half"):
            return False
        at = token.index
        while self._number(self._after(token, at - token.index)) is not None or self._after(
            token, at - token.index
        ).text in ("a", "an", "and", "half", "fortnight", *UNITS):
            at += 1
        word = self._after(token, at - token.index)
        then = self._after(word)
        return word.text == "from" and (then.text in ("now", "today", "tomorrow") or then.text in DAY_NAMES)

    def _from_now_clause(self, token: Token) -> None:
        self._once_only("date", token)
        offset = self._offset()
        self._at += 1
        if self._accept("now", "today"):
            self.parts.offset = offset
            return
        day = self._day()
        days = {"day": 1, "week": 7}
        if any(unit not in days for _, unit in offset):
            self._refuse(token, "count days or weeks from there, e.g. 'two days from tomorrow'")
        self.parts.day = replace(day, plus=sum(count * days[unit] for count, unit in offset))

    def _early(self, token: Token) -> None:
        """`early every morning at 5`: says nothing beside a time."""
        self._vague = token

    def _tonight(self, token: Token) -> None:
        self._near_day(token)
        self._day_part(token)

    def _for(self, token: Token) -> None:
        """`for the next 3 days`, `for 2 weeks`, `for 10 times`."""
        if self._number(self._peek()) is not None and self._peek(1).text == "times":
            self._limit(self._take())
            return
        self._once_only("number of times or length", token)
        self._accept("the")
        if self._accept("next", "coming", "following") and self._peek().text in UNITS:
            self.parts.lasting = 1, UNITS[self._take().text]
            return
        self.parts.lasting = self._duration()

    def _city(self, token: Token, ending: str) -> bool:
        """`Tokyo time`, `in los angeles`: a city that names a zone. Takes it, or fails if it is not known."""
        words, at = [token], token.index + 1
        while len(words) < CITY_WORDS_MAX and self._after(words[-1]).kind == "word" and words[-1].text != ending:
            words.append(self._after(words[-1]))
            at += 1
        for width in range(len(words), 0, -1):
            name = " ".join(word.text for word in words[:width])
            after = self._after(words[width - 1])
            zone = city_zone(name)
            if zone is None or (ending and after.text != ending):
                continue
            self._once_only("time zone", token)
            self.parts.zone = zone
            self._at = words[width - 1].index + (2 if after.text == "time" else 1)
            return True
        if ending and any(word.text == ending for word in words[1:]):
            self._refuse(token, "no time zone is named after that place: give one such as Europe/Berlin")
        return False

    def _known_zone(self, token: Token) -> bool:
        """`CET`, `US Eastern`: names of zones, where a city's needs `time`."""
        words = [token.text, f"{token.text} {self._peek().text}"]
        for width, name in ((2, words[1]), (1, words[0])):
            if name in ZONE_NAMES:
                self._once_only("time zone", token)
                self.parts.zone = city_zone(name)
                self._at += width - 1
                return True
        return False

    def _at_clause(self, token: Token) -> None:
        if self._past_hour_at(self._peek()):
            self._past_hour()
            return
        self._accept("the")
        if self._peek().text in DAY_PARTS:
            self._day_part(self._take())
        elif self._peek().kind == "date":
            self._on(token)
        elif self._shift_at(self._peek()) is not None:
            self._times(token)
        elif self._peek().kind == "past":
            past = self._take()
            self._minute_past(past, int(past.text[1:]))
        elif not self._past_the_hour():
            self._times(token)

    def _on(self, token: Token) -> None:
        if self._peek().text in ("each", "every"):
            self._every(self._take())
            return
        self._accept("the")
        first = self._peek()
        if first.text == "next" and self._number(self._peek(1)) is not None:
            self._near_day(self._take())
        elif first.text in ("hour", "half") and (first.text == "hour" or self._peek(1).text == "hour"):
            self._at += 1 if first.text == "hour" else 2
            self._minute_past(first, 0 if first.text == "hour" else 30)
        elif self._is_weekday(first):
            self._weekdays()
        elif self._ordinal(first) is not None and not self._is_date():
            self._ordinals(token)
        else:
            self._once_only("date", token)
            self.parts.day = self._day()

    def _in(self, token: Token) -> None:
        first = self._peek()
        if first.kind == "zone":
            self._zone(self._take())
        elif self._is_month(first):
            self._months(first)
        elif first.text == "the" and self._peek(1).text in DAY_PARTS:
            self._at += 1
            self._day_part(self._take())
        elif first.text == "the" and UNITS.get(self._peek(1).text) in ("month", "quarter", "year"):
            self._of(first)
        elif first.kind == "word" and self._city(first, ""):
            return
        else:
            self._once_only("date", token)
            self.parts.offset = self._offset()

    def _between(self, token: Token) -> None:
        first = self._peek(1) if self._peek().text == "the" else self._peek()
        self._between_months = token.text == "between"
        if self._is_range_of_months(first):
            self._months(first)
        elif token.text == "from" and first.text in DAY_NAMES and self._peek(1).text in RANGE_WORDS:
            self._weekdays()
        elif self._ordinal(first) is not None and self._days_of_month_from(first):
            if (self.parts.unit, self.parts.step) == ("day", 1):
                self.parts.unit = None
            self._between_days = token.text == "between"
            self._ordinals(token)
        elif token.text == "between" and first.text in DAY_NAMES:
            self._refuse(first, "which days? write e.g. 'monday to wednesday'")
        elif token.text == "between" and self._starts_day(first) and not self._starts_time(first):
            self._start(token)
            if not self._accept("and", *RANGE_WORDS):
                self._fail(self._peek(), "expected 'and' and the last day")
            self._until(self._peek())
        elif token.text == "from" and not self._starts_time(first) and first.kind != "number":
            self._start(token)
        else:
            self._between_times(token)

    def _start(self, token: Token) -> None:
        if self._starts_phase():
            self._once_only("start", token)
            self._accept("at", "from")
            self._phase = self._written_time()
            return
        self._once_only("start", token)
        self._accept("at")
        if self._starts_hour(self._peek()) and not self._starts_day(self._peek()):
            self._refuse(self._peek(), "on which day does it start? write e.g. 'starting tomorrow at 9am'")
        self._accept("on", "from", "at")
        self.parts.start = self._moment()
        if token.text == "from" and self._peek().text in RANGE_WORDS:
            self._until(self._take())

    def _starts_phase(self) -> bool:
        """`every 8 hours starting at 6am`: a time of the first stretch of a rhythm that divides the day."""
        at = 1 if self._peek().text in ("at", "from") else 0
        seconds = SECONDS.get(str(self.parts.unit), 0) * self.parts.step
        if not self._starts_hour(self._peek(at)) or seconds < 60 or DAY_SECONDS % seconds:
            return False
        here, seen = self._at, self._peek(at)
        self._at += at
        written = self._written_time()
        self._at = here
        follows = self._after(seen).text in ("tomorrow", "on", "today", "next")
        return (written.half or not written.bare) and not follows and written.shifted() < seconds

    def _before(self, token: Token) -> None:
        """`before 2026-12-15`: until the day before."""
        if self._starts_hour(self._peek()) and not self._starts_day(self._peek()):
            self._refuse(self._peek(), "of which day? write e.g. 'between 6am and noon', or 'until tomorrow at noon'")
        self._until(token)
        until = self.parts.until
        if until is not None and until.time in (None, MIDNIGHT):
            self.parts.until = Moment(replace(until.day, plus=until.day.plus - 1, strict=until.day.is_weekday))
        elif until is not None:
            self.parts.until = replace(until, open=True)

    def _days_of_month_from(self, first: Token) -> bool:
        """`the 1st to the 10th`, without a month."""
        width = 2 if self._after(first, 2).text == "the" else 1
        word, then = self._after(first), self._after(first, 1 + width)
        after = self._after(then)
        month = after.text in MONTH_NAMES or (after.text == "of" and self._after(after).text in MONTH_NAMES)
        return word.text in (*RANGE_WORDS, "and") and self._ordinal(then) is not None and not month

    def _until(self, token: Token) -> None:
        self._once_only("end", token)
        self._accept("on")
        self.parts.until = self._time_then_day() if self._starts_time(self._peek()) else self._moment()

    def _near_day(self, token: Token) -> None:
        if self._next_days(token):
            return
        self._once_only("date", token)
        if token.text == "this" and self._peek().text in DAY_PARTS:
            self.parts.day = DayRef(days=0)
            self._day_part(self._take())
            return
        self.parts.day = self._day_of(token)

    def _zone(self, token: Token) -> None:
        self._once_only("time zone", token)
        title = re.sub(r"(?<![a-z])[a-z]", lambda letter: letter.group().upper(), token.given)
        self.parts.zone = _KNOWN_ZONES.get(token.text) or (title if token.given == token.text else token.given)
