"""How a page is asked for and answered: the caller, its permissions, and the answers to errors.

Every page is a `Page` in a table, as every endpoint of the API is: its scope is judged before anything is looked up,
and the same operations and roles decide. Forms carry a token that only a page of ours can know; besides, the guards of
the API hold here too (names of this server, no page of another site).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import UNSET, Struct
from starlette.responses import Response

from horarium.access.acting import acting, reading
from horarium.access.audit import Origin
from horarium.access.people import People
from horarium.access.roles import LOCAL, Principal, Scope
from horarium.access.sessions import Sessions, SignInSession
from horarium.api.answers import Ready
from horarium.api.endpoints import Row, rows_of
from horarium.api.guards import Keys
from horarium.api.limits import RETRY_AFTER_SECONDS
from horarium.api.problems import BodyCutOff, BodyTooLarge, MalformedRequest, Overloaded
from horarium.api.reading import peer_of, read_all, read_cursor
from horarium.api.routing import AnyRequest, Route
from horarium.clock import Instant
from horarium.dashboard.attention import Watching, counts_of
from horarium.dashboard.formats import zone_of
from horarium.dashboard.frame import PLACES, banner, going_on, page_answer, render, render_in_steps, takes_gzip, when
from horarium.errors import Conflict, Forbidden, HorariumError, InvalidRequest, NotFound, Outage
from horarium.model import uuid7
from horarium.model.identity import is_run_id
from horarium.operations.facade import Operations
from horarium.operations.writing.context import Entropy
from horarium.rules.holds import InForce, stretch_at

SESSION = "horarium_session"
VISIT = "horarium_visit"
"""Where no key is needed there is no session, but forms need something to be bound to."""
ZONE = "horarium_zone"
SAID = "horarium_said"
SAID_SECONDS = 60
BY_LIVE = "x-live"
BY_SCRIPT = "x-form"
"""A form that `app.js` sent carries this header."""
COUNTS_AGE_MAX = 10.0
BANNERS_MAX = 3
"""Holds that each page tells of; the others are counted."""
FORM_BYTES_MAX = 1_200_000
FORM_FIELDS_MAX = 2_000
VISIT_BYTES = 32
NAME_CHARS_MAX = 200
REFUSALS = {
    NotFound: (404, "There is nothing here"),
    Forbidden: (403, "You may not do this"),
    Conflict: (409, "That can't be done now"),
    Overloaded: (503, "This page takes too long"),
    Outage: (503, "The store does not answer"),
}


class Visit(Struct, kw_only=True):
    """One request of a browser. `form`: the posted fields, checked. `scopes`: all that the visitor has, and `places`
    the entries of the navigation that it may open; `principal` is bound as those roles are that open this page."""

    request: AnyRequest
    principal: Principal
    token: str
    now: Instant
    zone: str
    form: dict[str, list[str]] = {}
    cookies: list[str] = []
    scopes: frozenset[Scope] = frozenset()
    places: Sequence[tuple[str, str, str]] = ()

    @property
    def csrf(self) -> str:
        """What forms of this visit carry."""
        return csrf_of(self.token)

    def may(self, scope: str) -> bool:
        return Scope(scope) in (self.scopes or self.principal.scopes)

    @property
    def may_share(self) -> bool:
        """Whether the visitor may save views that everyone sees."""
        return self.may(Scope.JOBS_WRITE) and not self.principal.bound

    def text(self, name: str) -> str:
        """A field of the form, or of the query."""
        if name in self.form:
            return self.form[name][0]
        return next(iter(self.request.query_params.getlist(name)), "")

    def one_of(self, name: str, known: Collection[str]) -> str:
        """A field that is one of these; empty, where it is left out. Raises InvalidRequest."""
        for given in (self.text(name), *self.texts(name)):
            if given and given not in known:
                raise InvalidRequest(f"{name}: {given[:50]!r} is none of {', '.join(known)}", field=name)
        return self.text(name)

    def after(self, list_name: str, fits: Callable[[str], bool]) -> str | None:
        """Where the page of a list begins that is asked for. Raises InvalidCursor."""
        return read_cursor(list_name, self.text("cursor") or UNSET, fits)

    def texts(self, name: str) -> list[str]:
        """A field that may be there several times."""
        if self.form:
            return self.form.get(name, [])
        return self.request.query_params.getlist(name)

    def path_id(self, noun: str) -> str:
        """The id of a run, or a thing that is named as runs are. Raises NotFound for what looks like none."""
        given = str(self.request.path_params["id"])
        if not is_run_id(given):
            raise NotFound(f"there is no {noun} {given[:NAME_CHARS_MAX]!r}")
        return given

    @property
    def path_name(self) -> str:
        return unquote(str(self.request.path_params["name"]))


class Shown(Struct):
    """A page: its template and what it shows."""

    template: str
    values: dict[str, Any]
    status: int = 200


class Went(Struct):
    """An action was done: where the browser goes, and the message there. `undo`: the form's action and its button."""

    to: str
    said: str = ""
    undo: tuple[str, str] | None = None


Answer = Shown | Went | Response
Counts = dict[str, tuple[str, bool]]


class Page(Row, frozen=True, kw_only=True):
    """One address. `scope`: what the visitor must be allowed, and `also` that; `open`: answered to everyone. `place`:
    which entry of the navigation it belongs to. `tells_all`: it is not for visitors that are bound. `reads`: what is
    posted changes nothing."""

    scope: Scope | None = Scope.JOBS_READ
    also: Scope | None = None
    place: str = ""
    open: bool = False
    tells_all: bool = False
    reads: bool = False


class Pages:
    """Pages of one part of the dashboard."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def pages(self) -> list[Page]:
        """The part of the table that is at its methods."""
        return rows_of(self)


def csrf_of(token: str) -> str:
    """What forms carry, made from a cookie that no page can read."""
    return sha256(f"form {token}".encode()).hexdigest()


class Site:
    """Serves a table of pages."""

    def __init__(
        self,
        operations: Operations,
        keys: Keys,
        sessions: Sessions,
        entropy: Entropy,
        watching: Watching,
        people: People | None = None,
        public_url: str | None = None,
    ) -> None:
        self._behind_tls = hosts_behind_tls(public_url)
        self._operations = operations
        self._keys = keys
        self._sessions = sessions
        self._entropy = entropy
        self._people = people
        self._watching = watching
        self._table: dict[str, Page] = {}

    def route(self, page: Page) -> Route:
        """The route of a page."""
        self._table[page.name] = page

        async def handle(request: AnyRequest) -> Response:
            if request.headers.get("host") in self._behind_tls:
                request.scope["scheme"] = "https"
            return await self._serve(page, request)

        methods = ("GET", "HEAD") if page.method == "GET" else (page.method,)
        costly = page.method == "GET" and page.scope is not None and not page.open
        return Route(
            path=page.path, methods=methods, name=f"page-{page.name}", handle=handle, page=page, costly=costly,
            refused=partial(self._broken, None),
        )  # fmt: skip

    # ---- who asks

    async def _visit(self, request: AnyRequest, *, open: bool) -> Visit | None:
        """None: the visitor must sign in first."""
        cookies = cookies_of(request)
        now, zone = self._operations.clock.now(), str(zone_of(unquote(cookies.get(ZONE, "UTC"))))
        if not self._keys.needed or open:
            token = cookies.get(VISIT) or self._entropy(VISIT_BYTES).hex()
            given = [] if cookies.get(VISIT) else [set_cookie(request, VISIT, token)]
            return Visit(request=request, principal=LOCAL, token=token, now=now, zone=zone, cookies=given)
        token = cookies.get(SESSION, "")
        session = await self._sessions.find(token) if token else None
        principal = await self._bearer(session) if session else None
        if session is None or principal is None:
            return None
        visit = Visit(request=request, principal=principal, token=token, now=now, zone=zone)
        rotates = request.method == "GET" and "hx-request" not in request.headers
        if rotates and (fresh := await self._sessions.rotate(session)) is not None:
            visit.token = fresh
            visit.cookies.append(set_cookie(request, SESSION, fresh))
        return visit

    async def _bearer(self, session: SignInSession) -> Principal | None:
        if session.credential == "person":
            return session.person if self._people is not None and session.key == self._people.stamp else None
        return await self._keys.bearer(session.credential, session.key)

    def _origin(self, visit: Visit) -> Origin:
        """Who changes something, for the audit."""
        request_id = uuid7(visit.now, self._entropy(10))
        return Origin(principal=visit.principal, request_id=request_id, address=peer_of(visit.request.scope))

    # ---- answers

    async def _serve(self, page: Page, request: AnyRequest) -> Response:
        try:
            visit = await self._visit(request, open=page.open)
        except Outage as outage:
            return self._broken(None, request, outage)
        if visit is None:
            return self._to_sign_in(request)
        request.scope["user"] = visit.principal
        try:
            if "\0" in str(request.scope["path"]) or b"%00" in request.scope["query_string"]:
                raise NotFound("no address holds NUL")
            visit.scopes = visit.principal.scopes
            visit.places = [place for place in PLACES if _refusal(visit.principal, self._table[place[0]]) is None]
            if (refusal := _refusal(visit.principal, page)) is not None:
                raise refusal
            visit.principal = request.scope["user"] = visit.principal.narrowed(page.scope)
            if page.method == "POST":
                await self._read_form(visit)
            changes = page.method == "POST" and not page.reads
            with reading(visit.principal):
                await self._require_there(visit)
            with acting(self._origin(visit) if changes else None), reading(None if changes else visit.principal):
                answer: Answer = await page.handle(visit)
        except (BodyCutOff, BodyTooLarge):
            raise
        except HorariumError as error:
            if isinstance(error, Forbidden):
                self._keys.refuse(request, error)
            return self._broken(visit, request, error)
        if isinstance(answer, Shown):
            bound = visit.principal.bound
            return await self._page(visit, page.place, answer, {} if bound else await self._counts(page))
        if isinstance(answer, Went):
            return self._going(visit, answer)
        return answer

    async def _require_there(self, visit: Visit) -> None:
        """Raises NotFound for a job or run that a bound visitor may not see."""
        path, parameters = str(visit.request.scope["path"]), visit.request.path_params
        if not visit.principal.bound:
            return
        if path.startswith("/jobs/") and "name" in parameters:
            await self._operations.jobs.get_job(visit.path_name[:NAME_CHARS_MAX])
        elif path.startswith(("/runs/", "/approvals/")) and "id" in parameters:
            await self._operations.runs.get_run(str(parameters["id"])[:NAME_CHARS_MAX])

    async def _counts(self, page: Page) -> Counts:
        """The marks beside the navigation: a page waits for none of them, and does not fail with them."""
        if page.open or page.method == "POST":
            return {}
        try:
            return counts_of(await self._watching.look(COUNTS_AGE_MAX))
        except Outage:
            return {}

    async def _page(self, visit: Visit, place: str, shown: Shown, counts: Counts | None = None) -> Response:
        # All tabs share this cookie: one that looks again leaves the message to the page that was gone to.
        said = None if BY_LIVE in visit.request.headers else _read_said(cookies_of(visit.request).get(SAID))
        cookies = [*visit.cookies, *([set_cookie(visit.request, SAID, "", seconds=0)] if said else [])]
        values = {**self.frame(visit, place), "counts": counts or {}, "said": said, **shown.values}
        body = await render_in_steps(shown.template, values)
        headers = tuple(("set-cookie", cookie) for cookie in cookies)
        return page_answer(body, gzipped=takes_gzip(visit.request), status=shown.status, headers=headers)

    def frame(self, visit: Visit, place: str) -> dict[str, Any]:
        """What the frame of every page shows."""
        return {
            "visit": visit,
            "place": place,
            "standing": self._standing(visit, place),
            "now": visit.now,
            "zone": visit.zone,
            "when": lambda instant: when(instant, visit.now, visit.zone),
            "signed_in": self._keys.needed,
            "address": str(visit.request.scope["path"]) + _query(visit.request),
        }

    def _standing(self, visit: Visit, place: str) -> tuple[list[dict[str, Any]], int]:
        """The holds that are in force, and how many more; a bound visitor is shown a hold on everything, and the rest
        with its jobs. Those of circuit breakers are lines of the Overview, those of workers of Nodes."""
        known = self._operations.reconciler.holding.known
        seen = sorted((hold for hold in known if hold.scope.all or not visit.principal.bound), key=lambda hold: hold.id)
        seen = [hold for hold in seen if hold.scope.worker is None and (hold.probing is None or place != "overview")]
        held = [InForce(hold, stretch) for hold in seen if (stretch := stretch_at(hold, visit.now)) is not None]
        stats = None if visit.principal.bound else self._watching.counted
        return [banner(each, stats) for each in held[:BANNERS_MAX]], max(len(held) - BANNERS_MAX, 0)

    def _going(self, visit: Visit, went: Went) -> Response:
        cookies = list(visit.cookies)
        if went.said:
            undo = went.undo or ("", "")
            said = "|".join(quote(text, safe="") for text in (went.said, *undo))
            cookies.append(set_cookie(visit.request, SAID, said, seconds=SAID_SECONDS))
        # A form that is sent by a script goes on by itself: the page that it came from keeps all fields until then.
        status, name = (204, "x-to") if BY_SCRIPT in visit.request.headers else (303, "location")
        return Ready(status=status, headers=[(name, went.to), *(("set-cookie", cookie) for cookie in cookies)])

    def _to_sign_in(self, request: AnyRequest) -> Response:
        back = str(request.scope["path"]) + _query(request)
        undone = "" if back == "/sign-out" else "?undone=1"
        to = f"/sign-in?next={quote(back, safe='')}" if request.method == "GET" else f"/sign-in{undone}"
        if "hx-request" in request.headers or BY_SCRIPT in request.headers:
            return Ready(status=401)
        if request.method == "GET" and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # A link on another site brings no cookie along; our own page does.
            return going_on(request, back)
        return Ready(status=303, headers=[("location", to)])

    def _broken(self, visit: Visit | None, request: AnyRequest, error: HorariumError) -> Response:
        status, heading = _heading(error)
        values: dict[str, Any] = {"heading": heading, "error": error, "status": status}
        values |= {"outage": True} if isinstance(error, Outage) else {}
        if visit is None:
            body = render("down.html", {**values, "again": not isinstance(error, Overloaded)})
        else:
            body = render("broken.html", {**self.frame(visit, ""), "counts": {}, "said": None, **values})
        later = (("retry-after", str(RETRY_AFTER_SECONDS)),) if isinstance(error, Overloaded) else ()
        return page_answer(body, gzipped=takes_gzip(request), status=status, headers=later)

    # ---- forms

    async def _read_form(self, visit: Visit) -> None:
        visit.form = await read_form(visit.request)
        if not compare_digest(visit.text("csrf").encode("utf-8", "replace"), visit.csrf.encode()):
            raise Forbidden(
                "this form was not made for you, or is too old; go back, load the page again and repeat", []
            )


def _refusal(visitor: Principal, page: Page) -> Forbidden | None:
    """Why this page is not for this visitor; None: it is."""
    missing = [each for scope in (page.scope, page.also) if scope is not None for each in visitor.missing(scope)]
    if missing:
        return Forbidden(f"{visitor.name} may not do this; it takes the scope {', '.join(missing)}", missing)
    if page.tells_all and visitor.narrowed(page.scope).bound:
        return Forbidden(f"{visitor.name} is bound {visitor.bounds}, and this page tells of all")
    return None


async def read_form(request: AnyRequest) -> dict[str, list[str]]:
    """The fields of a posted form. Raises MalformedRequest."""
    body = await read_all(request, FORM_BYTES_MAX)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        raise MalformedRequest("the form can't be read") from None
    if b"%00" in body or b"\0" in body:
        raise MalformedRequest("the form holds NUL, which no text of ours does")
    form: dict[str, list[str]] = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form


def _heading(error: HorariumError) -> tuple[int, str]:
    """Status and heading."""
    return next(
        (answer for kind, answer in REFUSALS.items() if isinstance(error, kind)), (422, "That could not be done")
    )


def hosts_behind_tls(public_url: str | None) -> frozenset[str]:
    """What `Host` says of a request that came to an https:// `public_url`: a proxy ended its TLS, and its cookies must
    not go over clear text. Proxies pass `Host` on with the port, or without."""
    url = urlsplit(public_url or "")
    return frozenset((url.netloc, url.hostname or "")) if url.scheme == "https" else frozenset()


def set_cookie(
    request: AnyRequest, name: str, value: str, seconds: int | None = None, same_site: str = "Strict"
) -> str:
    """A cookie for this site alone, which no script can read."""
    parts = [f"{name}={value}", "Path=/", "HttpOnly", f"SameSite={same_site}"]
    if request.scope.get("scheme") == "https":
        parts.append("Secure")
    if seconds is not None:
        parts.append(f"Max-Age={seconds}")
    return "; ".join(parts)


def cookies_of(request: AnyRequest) -> Mapping[str, str]:
    try:
        jar: SimpleCookie = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def _read_said(cookie: str | None) -> tuple[str, str, str] | None:
    """The message, the action that takes it back and its button."""
    parts = [unquote(part) for part in (cookie or "").split("|")]
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and parts[0] else None


def _query(request: AnyRequest) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return f"?{query}" if query else ""
