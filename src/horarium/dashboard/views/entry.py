"""Coming and going: sign-in with a key, sign-out, and the files of the pages."""

from __future__ import annotations

import re

from horarium.access.people import People
from horarium.access.roles import Scope
from horarium.access.sessions import Credential, Sessions
from horarium.api.events import event_stream
from horarium.api.guards import Keys
from horarium.api.problems import TooManyFailures
from horarium.dashboard.frame import file_answer
from horarium.dashboard.site import (
    SESSION,
    Answer,
    Page,
    Pages,
    Shown,
    Visit,
    Went,
    cookies_of,
    set_cookie,
    takes_gzip,
)
from horarium.errors import NotFound
from horarium.services.polling.news import News

KEY_CHARS_MAX = 10_000
_INSIDE = re.compile(r"/(?:[^\s/\\\x00-\x20\x7f][^\s\\\x00-\x20\x7f]*)?")


class Entry(Pages):
    """The pages that are answered before anyone is known."""

    def __init__(self, keys: Keys, sessions: Sessions, news: News, people: People | None = None) -> None:
        self._people = people
        self._keys = keys
        self._sessions = sessions
        self._news = news

    @Page("GET", "/sign-in", "sign-in", scope=None, open=True)
    async def ask(self, visit: Visit) -> Answer:
        if not self._keys.needed:
            return Went("/")
        return sign_in_page(visit.text("next"), self._people)

    @Page("POST", "/sign-in", "sign-in-done", scope=None, open=True)
    async def sign_in(self, visit: Visit) -> Answer:
        given, back = visit.text("key").strip()[:KEY_CHARS_MAX], inside(visit.text("next"))
        problem = "That key opens nothing here. It may have been revoked."
        opened: tuple[Credential, str] | None = None
        try:
            opened = await self._keys.sign_in(visit.request, given.encode("utf-8", "replace")) if given else None
        except TooManyFailures as refused:
            problem = refused.message
        if opened is None:
            return sign_in_page(back, self._people, problem=problem if given else "Give a key.")
        await self._sessions.end(cookies_of(visit.request).get(SESSION, ""))
        token = await self._sessions.begin(opened[0], opened[1])
        visit.cookies.append(set_cookie(visit.request, SESSION, token))
        return Went(back)

    @Page("POST", "/sign-out", "sign-out", scope=None)
    async def sign_out(self, visit: Visit) -> Answer:
        await self._sessions.end(visit.token)
        visit.cookies.append(set_cookie(visit.request, SESSION, "", seconds=0))
        return Went("/sign-in")

    @Page("GET", "/events", "events", scope=Scope.RUNS_READ)
    async def events(self, visit: Visit) -> Answer:
        return event_stream(visit.request, self._news, visit.principal, paced=True)

    @Page("GET", "/dashboard/{stamp}/{file}", "file", scope=None, open=True)
    async def file(self, visit: Visit) -> Answer:
        name = str(visit.request.path_params["file"])
        found = file_answer(name, gzipped=takes_gzip(visit.request))
        if found is None:
            raise NotFound(f"there is no file {name[:100]!r} here")
        return found


def sign_in_page(
    to: str, people: People | None, *, problem: str | None = None, issuer_problem: str | None = None
) -> Shown:
    """Where people sign in. A problem is shown beside what it was met with: the key, or the issuer."""
    values = {
        "next": inside(to),
        "issuer": None if people is None else people.place,
        "problem": problem,
        "issuer_problem": issuer_problem,
    }
    return Shown("sign-in.html", values, 401 if problem or issuer_problem else 200)


def inside(to: str) -> str:
    """An address of this site; `/` for any other. Browsers pass over white space and take `\\` for `/`."""
    return to if _INSIDE.fullmatch(to) else "/"
