"""Minutes of the hour in phrases: `at half past`, `10 minutes before the hour`, `the top of every hour`."""

from __future__ import annotations

from horarium.triggers.phrase_days import DayReader
from horarium.triggers.phrase_words import UNITS, Token


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
