"""The tokens of a phrase and the reading position, which only moves forward: every parser on top of it is linear."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn

from horarium.errors import InvalidTrigger
from horarium.triggers.phrase_questions import QUESTIONS, half_before
from horarium.triggers.phrase_words import VOCABULARY, Token
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
