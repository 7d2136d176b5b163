"""Sign-in at the issuer: to its page, and back.

The browser keeps the secret of its attempt in a cookie that also comes along when the issuer sends it back (`Lax`); it
is worth nothing but this one sign-in, and is forgotten with it. The cookie of the session is stricter: so the answer is
a page of ours, which goes on to where the person wanted to be.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from urllib.parse import quote, unquote

from horarium.access.people import Attempt, People, SignInFailed
from horarium.access.sessions import Sessions
from horarium.api.answers import Ready
from horarium.api.app import Entrance
from horarium.api.problems import TooManyFailures
from horarium.dashboard.site import SESSION, Answer, Page, Pages, Visit, going_on, set_cookie
from horarium.dashboard.site import cookies_of as cookies
from horarium.dashboard.views.entry import inside, sign_in_page

COOKIE = "horarium_sign_in"
COOKIE_SECONDS = 600
SECRET_BYTES = 32
BACK = "/sign-in/callback"
"""What the client at the issuer must have as a redirect address, below this server's own."""


class IssuerEntry(Pages):
    """The two pages on either side of the issuer's."""

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
        secret, _, to = cookies(visit.request).get(COOKIE, "").partition(".")
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
