"""Coming and going: sign-in with a key or at the issuer, sign-out, and the files of the pages."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from urllib.parse import quote, unquote

from horarium.access.people import Attempt, People, SignInFailed
from horarium.access.roles import Scope
from horarium.access.sessions import Credential, Sessions
from horarium.api.answers import Ready
from horarium.api.app import Entrance
from horarium.api.events import event_stream
from horarium.api.guards import Keys
from horarium.api.problems import TooManyFailures
from horarium.api.routing import ELSEWHERE
from horarium.dashboard.frame import file_answer, going_on, takes_gzip
from horarium.dashboard.site import (
    NAME_CHARS_MAX,
    SESSION,
    Answer,
    Page,
    Pages,
    Shown,
    Visit,
    Went,
    cookies_of,
    set_cookie,
)
from horarium.errors import NotFound
from horarium.services.polling.news import News

KEY_CHARS_MAX = 10_000
COOKIE = "horarium_sign_in"
COOKIE_SECONDS = 600
SECRET_BYTES = 32
BACK = "/sign-in/callback"
"""What the client at the issuer must have as a redirect address, below this server's own."""
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
        return sign_in_page(visit.text("next"), self._people, undone=visit.text("undone") != "")

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

    @Page("GET", ELSEWHERE, "elsewhere", scope=None)
    async def elsewhere(self, visit: Visit) -> Answer:
        raise NotFound(f"there is nothing at {visit.request.scope['path'][:NAME_CHARS_MAX]}")

    @Page("GET", "/dashboard/{stamp}/{file}", "file", scope=None, open=True)
    async def file(self, visit: Visit) -> Answer:
        name = str(visit.request.path_params["file"])
        found = file_answer(name, gzipped=takes_gzip(visit.request))
        if found is None:
            raise NotFound(f"there is no file {name[:100]!r} here")
        return found


def sign_in_page(
    to: str,
    people: People | None,
    *,
    problem: str | None = None,
    issuer_problem: str | None = None,
    undone: bool = False,
) -> Shown:
    """Where people sign in. A problem is shown beside what it was met with: the key, or the issuer. `undone`: a form or
    a button led here, whose session had ended."""
    values = {
        "next": inside(to),
        "issuer": None if people is None else people.place,
        "problem": problem,
        "issuer_problem": issuer_problem,
        "undone": undone,
    }
    return Shown("sign-in.html", values, 401 if problem or issuer_problem else 200)


def inside(to: str) -> str:
    """An address of this site; `/` for any other. Browsers pass over white space and take `\\` for `/`."""
    return to if _INSIDE.fullmatch(to) else "/"


class IssuerEntry(Pages):
    """Sign-in at the issuer: the two pages on either side of its own.

    The browser keeps the secret of its attempt in a cookie that also comes along when the issuer sends it back (`Lax`);
    it is worth nothing but this one sign-in, and is forgotten with it. The cookie of the session is stricter: so the
    answer is a page of ours, which goes on to where the person wanted to be."""

    def __init__(self, entrance: Entrance, sessions: Sessions, people: People, public_url: str | None) -> None:
        self._keys, self._entropy = entrance.keys, entrance.entropy
        self._sessions, self._people, self._public_url = sessions, people, public_url

    @Page("GET", "/sign-in/issuer", "sign-in-issuer", scope=None, open=True)
    async def go(self, visit: Visit) -> Answer:
        to = inside(visit.text("next"))
        attempt = Attempt(urlsafe_b64encode(self._entropy(SECRET_BYTES)).decode().rstrip("="))
        try:
            address = await self._people.address(attempt, self._redirect_uri(visit))
        except SignInFailed as failed:
            return sign_in_page(to, self._people, issuer_problem=str(failed))
        kept = set_cookie(visit.request, COOKIE, f"{attempt.secret}.{quote(to, safe='')}", COOKIE_SECONDS, "Lax")
        return Ready(status=303, headers=[("location", address), ("set-cookie", kept)])

    @Page("GET", BACK, "sign-in-callback", scope=None, open=True)
    async def come_back(self, visit: Visit) -> Answer:
        secret, _, to = cookies_of(visit.request).get(COOKIE, "").partition(".")
        to = inside(unquote(to))
        forgotten = set_cookie(visit.request, COOKIE, "", 0, "Lax")
        try:
            if not secret:
                raise SignInFailed("This browser began no sign-in lately, or keeps no cookies. Begin again.")
            await self._keys.slow_down(visit.request, visit.text("code"))
            answer = {name: str(value) for name, value in visit.request.query_params.items()}
            person = await self._people.person(Attempt(secret), answer, self._redirect_uri(visit))
        except (SignInFailed, TooManyFailures) as failed:
            if isinstance(failed, SignInFailed):
                self._keys.sign_in_failed(
                    visit.request, f"the sign-in at the issuer failed: {failed}", owes=bool(secret)
                )
            visit.cookies.append(forgotten)
            return sign_in_page(to, self._people, issuer_problem=str(failed))
        token = await self._sessions.begin_of(person, self._people.stamp)
        return going_on(visit.request, to, [forgotten, set_cookie(visit.request, SESSION, token)])

    def _redirect_uri(self, visit: Visit) -> str:
        base = self._public_url or str(visit.request.base_url)
        return base.rstrip("/") + BACK
