"""Times of day: `9am`, `18:00`, `quarter past 9 in the morning`, `10 minutes before midnight`, `at 9 and 17`.

A bare hour says too little, so times are kept as they were written until the whole phrase is read: a part of the day
(`every evening at 7`) or a 24-hour number beside it (`from 9 to 17`) settles it, and nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass

from horarium.triggers.phrase_dates import DateReader
from horarium.triggers.phrase_parts import Moment, Parts, Time
from horarium.triggers.phrase_words import DAY_PARTS, MONTH_NAMES, NUMBERS, RANGE_WORDS, TIMES, UNITS, Token
from horarium.triggers.words import say_count

_PART_HOURS = {
    "morning": {**{h: h for h in range(1, 12)}, 0: 0},
    "afternoon": {12: 12, **{h: h + 12 for h in range(1, 7)}},
    "evening": {h: h + 12 for h in range(4, 12)},
    "night": {12: 0, **{h: h for h in range(6)}, **{h: h + 12 for h in range(6, 12)}},
    "tonight": {h: h + 12 for h in range(5, 12)},
}
"""For each part of the day: which hour of 24 a number of 12 means in it."""
_PART_WIDE = {"morning": 12, "afternoon": 12, "evening": 16, "night": 18, "tonight": 16}
_DAY_SECONDS = 86_400
_HOURS = {word: str(number) for word, number in NUMBERS.items() if number <= 12}
"""Hours as words: `half past six`."""


@dataclass(slots=True)
class WrittenTime:
    """A time of day as it was written: `9`, `9:30`, `9pm`, each perhaps so much before or after."""

    token: Token
    hour: int
    minute: int = 0
    second: int = 0
    bare: bool = False
    """Neither minutes nor am or pm: 9."""
    half: bool = False
    """With am or pm, or a name such as noon: certain."""
    shift: int = 0
    """Seconds: `10 minutes before` is -600."""

    def shifted(self) -> int:
        """The second of the day; midnight's end is what `before midnight` counts from."""
        second = self.hour * 3600 + self.minute * 60 + self.second
        return second + self.shift + (_DAY_SECONDS if second == 0 and self.shift < 0 else 0)


class TimeReader(DateReader):
    """Reads times of day, lists of them, windows and parts of the day."""

    def __init__(self, tokens: list[Token], length: int) -> None:
        super().__init__(tokens, length)
        self.parts = Parts()
        self._written: list[WrittenTime] = []
        self._window: tuple[Token, WrittenTime, WrittenTime] | None = None
        self._part: Token | None = None
        self._times_a_day: tuple[Token, int] | None = None
        self._vague: Token | None = None
        self._said_once = False
        self._between_days = False
        self._between_months = False
        self._phase: WrittenTime | None = None
        self._days_a: tuple[Token, int] | None = None

    # --- reading

    def _starts_time(self, token: Token) -> bool:
        if token.kind == "number" or token.text in _HOURS:
            after = self._after(token)
            if self._spoken_minute(token) is not None:
                after = self._after(token, 2)
            return after.kind == "half" or after.text == "o'clock" or self._is_h(after)
        return token.kind == "time" or token.text in TIMES

    def _after(self, token: Token, ahead: int = 1) -> Token:
        index = token.index + ahead
        return self._tokens[index] if index < len(self._tokens) else self._end

    def _starts_hour(self, token: Token) -> bool:
        """Any time of day, bare hours and `quarter past ...` too."""
        if self._starts_time(token) or self._shift_at(token) is not None:
            return True
        after = self._after(token).text
        counts = after in UNITS or after in MONTH_NAMES or after in ("times", "past", "of")
        digits = (1, 2, 4) if self._written and len(self._written[0].token.text) == 4 else (1, 2)
        return ((token.kind == "number" and len(token.text) in digits) or token.text in _HOURS) and not counts

    def _is_h(self, token: Token) -> bool:
        """The h of `at 13h`, which reads as a length of time."""
        before = self._tokens[token.index - 1]
        return token.text == "hour" and before.given == token.given and token.given[-1] in "hH"

    def _spoken_minute(self, token: Token) -> int | None:
        """The minute of `six thirty`: a word after the hour as a word."""
        after = self._after(token)
        minute = NUMBERS.get(after.text) if token.text in _HOURS and after.kind == "word" else None
        return minute if minute is not None and 10 <= minute < 60 and self._after(after).text not in UNITS else None

    def _shift_at(self, token: Token) -> tuple[int, int] | None:
        """Seconds, and how many tokens say so: `quarter past`, `20 minutes before`, `10 to`; a time must follow."""
        length = self._length_at(token)
        if length is None:
            return None
        seconds, width, counted = length
        word, then = self._after(token, width), self._after(token, width + 1)
        sign = {"past": 1, "after": 1, "before": -1, "to": -1, "til": -1}.get(word.text)
        window = word.text == "to" and not counted and not self._starts_time(then)
        is_hour = self._starts_time(then) or then.kind == "number" or then.text in _HOURS
        if sign is None or window or not is_hour:
            return None
        return sign * seconds, width + 1

    def _length_at(self, token: Token) -> tuple[int, int, bool] | None:
        """Seconds, how many tokens say so, and whether they name what they count: `10 minutes`, `a quarter`, `10`."""
        words = [self._after(token, ahead).text for ahead in range(3)]
        if words[:3] == ["half", "an", "hour"]:
            return 1800, 3, True
        if [self._after(token, ahead).text for ahead in range(5)] == ["a", "quarter", "of", "an", "hour"]:
            return 900, 5, True
        start = 1 if words[0] in ("a", "an") else 0
        if words[start] in ("quarter", "half"):
            return {"quarter": 900, "half": 1800}[words[start]], start + 1, True
        number = 1 if start else self._number(token)
        unit = UNITS.get(words[1])
        if number is None or (start and unit not in ("minute", "hour")):
            return None
        if unit in ("minute", "hour"):
            return number * (3600 if unit == "hour" else 60), 2, True
        return number * 60, 1, False

    def _written_time(self) -> WrittenTime:
        shift = self._shift_at(self._peek())
        if shift is not None:
            self._at += shift[1]
            written = self._plain_time()
            written.shift = shift[0]
            return written
        return self._plain_time()

    def _plain_time(self) -> WrittenTime:
        token = self._take()
        if token.text in TIMES:
            hour, minute, second = TIMES[token.text]
            return WrittenTime(token, hour, minute, second, half=True)
        if token.kind not in ("time", "number") and token.text not in _HOURS:
            self._fail(token, "expected a time of day such as 9am, 9:34am, 18:00, noon or midnight")
        spoken = self._spoken_minute(token)
        text = _HOURS.get(token.text, token.text).replace(".", ":").replace("h", ":")
        half = text[-2:] if text[-1] == "m" else ""
        if token.kind == "number" and len(text) == 4:
            text = f"{text[:2]}:{text[2:]}"
        digits = [int(n) for n in text.removesuffix(half).split(":")]
        if spoken is not None:
            self._at += 1
            digits.append(spoken)
        if not half and self._peek().kind == "half":
            half = self._take().text.replace(".", "")
        clock = self._accept("o'clock")
        if token.kind == "number" and self._is_h(self._peek()):
            self._at += 1
            clock = True
        if token.kind == "number" and len(token.text) == 4:
            self._accept("hours", "hrs")
        hour, minute, second = (*digits, 0, 0)[:3]
        if half and not 1 <= hour <= 12:
            self._refuse(token, "expected an hour from 1 to 12 before am or pm")
        if half:
            hour = hour % 12 + (12 if half == "pm" else 0)
        if hour > 23 or minute > 59 or second > 59:
            self._refuse(token, "expected a time from 00:00 to 23:59")
        return WrittenTime(
            token,
            hour,
            minute,
            second,
            bare=(len(digits) == 1 or spoken is not None) and not half and not clock,
            half=bool(half),
        )

    def _times(self, token: Token) -> None:
        self._once_only("time of day", token)
        self._written = [self._written_time()]
        while self._lists_on(self._starts_hour):
            self._written.append(self._written_time())

    def _between_times(self, token: Token) -> None:
        """`9am and 5pm`, `8 to 18`: a window."""
        self._once_only("window", token)
        first = self._plain_time()
        if not self._accept("and", *RANGE_WORDS):
            self._fail(self._peek(), "expected 'and' and the end of the window")
        self._window = (token, first, self._plain_time())

    def _starts_window(self, token: Token) -> bool:
        """`9 to 17`, `9am-5pm`, without a word before it."""
        width = 2 if self._after(token).kind == "half" else 1
        word, then = self._after(token, width), self._after(token, width + 1)
        is_time = token.kind in ("number", "time") or token.text in TIMES
        if width == 1 and word.text == "to" and token.text in ("5", "10", "20", "25") and then.text in TIMES:
            return self.parts.sub_daily  # `5 to midnight`: 23:55, unless something is to happen often until then
        return is_time and word.text in RANGE_WORDS and (then.kind in ("number", "time") or then.text in TIMES)

    def _day_part(self, token: Token) -> None:
        self._once_only("part of the day", token)
        self._part = token
        if token.text.endswith(("s", "ly")):
            self.parts.recurring = True

    def _moment(self) -> Moment:
        day = self._last_of() or self._day()
        at = self._accept("at")
        first = self._peek()
        if not self._starts_time(first) and not (at and self._starts_hour(first)):
            return Moment(day, None)
        written = self._written_time()
        if self._lists_on(self._starts_hour):  # more than one are the times at which it fires
            self._at = first.index
            self._times(first)
            return Moment(day, None)
        return Moment(day, self._time_of(written, alone=not self._tells_24_hours([written])))

    def _time_then_day(self) -> Moment:
        """`6pm tomorrow`, `noon on december 24th`. A weekday after a time may be each of that name."""
        first = self._peek()
        written = self._written_time()
        self._accept("on")
        self._accept("the")
        day = self._peek()
        if self._is_weekday(day):
            self._refuse(first, "write e.g. 'until friday at 6pm' for one day, 'from 8am to 6pm on fridays' for each")
        if day.text not in ("today", "tomorrow", "next", "this") and not self._starts_day(day):
            self._refuse(first, "of which day? write e.g. 'until tomorrow at 6pm', or 'from 8am to 6pm'")
        if first.text == "midnight":
            self._refuse(first, "at the beginning or at the end of that day? write 00:00 or 23:59")
        return Moment(self._day(), self._time_of(written, alone=True))

    # --- settling written times, once the phrase is read

    def _settle_times(self) -> None:
        """From written times to times of day."""
        if self._vague is not None and not self._written:
            self._fail(self._vague, "expected a time")
        if self._part is not None and not self._written:
            name = DAY_PARTS[self._part.text].replace("tonight", "evening")
            self._refuse(self._part, f"at what time? write e.g. 'every {name} at {_EXAMPLES[name]}'")
        alone = not self._tells_24_hours(self._written)
        self.parts.times = sorted({self._time_of(written, alone) for written in self._written})
        if self._times_a_day is not None:
            self._spread_times(*self._times_a_day)
        if self._phase is not None:
            self.parts.phase = self._time_of(self._phase, alone=not self._tells_24_hours([self._phase]))
        if self._days_a is not None:
            parts, (token, count) = self.parts, self._days_a
            if count != len(parts.weekdays if parts.unit == "week" else parts.month_days | parts.nth):
                self._refuse(token, f"{count} times a {parts.unit}: name each of the days")
        if self._window is not None:
            token, *ends = self._window
            alone = not self._tells_24_hours(ends)
            first, last = (self._time_of(end, alone, part=False) for end in ends)
            if last == first:
                self._refuse(token, "the window ends when it starts")
            self.parts.window = (first, last)

    @staticmethod
    def _tells_24_hours(times: list[WrittenTime]) -> bool:
        """Whether one of them can only be an hour of 24, and none has am or pm."""
        halved = any(written.half and written.token.text not in TIMES for written in times)
        return not halved and any(not written.half and (written.hour > 12 or written.hour == 0) for written in times)

    def _time_of(self, written: WrittenTime, alone: bool, part: bool = True) -> Time:
        if part and self._part is not None:
            self._within_part(written, self._part)
        elif written.bare and alone:
            second = written.shifted() % _DAY_SECONDS
            hour, minute = second // 3600, second // 60 % 60
            said = f"{(hour - 1) % 12 + 1}" + (f":{minute:02}" if minute else "")
            third = "" if written.shift else f" or {hour:02}:{minute:02}"
            either = "," if third else " or"
            self._refuse(written.token, f"is it {said}am{either} {said}pm{third}?")
        second = written.shifted()
        if not 0 <= second < _DAY_SECONDS:
            self._refuse(written.token, "counted from there, it is another day: write the time itself")
        return second // 3600, second // 60 % 60, second % 60

    def _within_part(self, written: WrittenTime, token: Token) -> None:
        """Reads an hour of 12 in a part of the day, and refuses what lies outside of it."""
        name = DAY_PARTS[token.text]
        hours = _PART_HOURS[name]
        certain = written.half or written.hour > 12
        if certain and written.hour not in hours.values() and not written.hour >= _PART_WIDE[name] > 12:
            self._refuse(written.token, f"that is not in the {name.replace('tonight', 'evening')}")
        if not certain:
            if written.hour not in hours:
                self._refuse(written.token, f"which hour of the {name.replace('tonight', 'evening')} is that?")
            written.hour = hours[written.hour]
        day = self._tokens[token.index - 1] if token.index else token  # of `friday night`, which ends on the next one
        if name == "night" and written.hour < 6 and (day.text == "tomorrow" or self._is_weekday(day)):
            self._refuse(written.token, "before that night or after it? write e.g. 'saturday at 1am'")

    def _spread_times(self, token: Token, count: int) -> None:
        """`twice a day`: at the times that are named, or evenly from midnight on."""
        if self._written and len(self.parts.times) != count:
            named = say_count(len(self.parts.times), "time")
            self._refuse(token, f"{count} times a day, but {named} of day: name each of them, or none")
        if not self._written:
            self.parts.times = [(hour, 0, 0) for hour in range(0, 24, 24 // count)]


_EXAMPLES = {"morning": "8", "afternoon": "3", "evening": "7", "night": "11"}
