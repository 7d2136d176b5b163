"""Templates and the frame around every page: navigation, times, and the headers that keep a page's powers small."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from inspect import isfunction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from starlette.responses import Response

from horarium.api.answers import Ready
from horarium.api.docs import ASSETS
from horarium.api.routing import AnyRequest
from horarium.clock import Instant
from horarium.dashboard import formats
from horarium.dashboard.marks import Mark
from horarium.operations.bounds.listing import Slices
from horarium.ports import Stats
from horarium.rules.holds import FOREVER, InForce, is_held, scope_words
from horarium.triggers.words import counted

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
STATIC = HERE / "static"
FROM_NPM = ("htmx.min.js", "htmx-license.txt")
"""Files that the build brings, beside those of the documentation."""
COMPRESSED_FROM = 1_000
PIECES_AT_ONCE = 50
"""Of a template, between two looks at the time."""
IN_ALL = ("sprite.svg", "parts.html", "base.html")
_loaded: set[str] = set()
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
PLACES = (
    ("overview", "Overview", ""),
    ("approvals", "Approvals", "approvals"),
    ("jobs", "Jobs", "jobs"),
    ("runs", "Runs", "runs"),
    ("batches", "Batches", "batches"),
    ("failures", "Failures", "failures"),
    ("timeline", "Timeline", "timeline"),
    ("calendar", "Calendar", "calendar"),
    ("forecast", "Forecast", "forecast"),
    ("business-days", "Business days", "business-days"),
    ("holds", "Holds", "holds"),
    ("queues", "Queues", "queues"),
    ("rates", "Rates", "rates"),
    ("nodes", "Nodes", "nodes"),
    ("channels", "Channels", "channels"),
    ("plans", "Plans", "plans"),
    ("feeds", "Feeds", "feeds"),
    ("access", "Access", "access"),
    ("audit", "Audit", "audit"),
)
"""The entries of the navigation: the name of the page, its word, and its path."""
LETTERS = dict(
    zip(
        ("overview", "approvals", "jobs", "runs", "batches", "failures", "timeline", "calendar", "forecast",
         "business-days", "holds", "queues", "nodes", "plans"),
        "oajrmftclbhqnp",
        strict=True,
    )
)  # fmt: skip
"""The key that opens a page after `g`."""
GROUPS = ("jobs", "timeline", "queues", "plans")
"""Those that begin a group."""
NOT_IN_QUOTES = {ord("'"): "%27", ord('"'): "%22"}
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}


def mark(which: Mark, title: str | None = None) -> Markup:
    """The drawing of a mark, beside a word that says the same."""
    tip = f"<title>{escape(title)}</title>" if title else ""
    symbol = which.symbol  # a word of ours, as all that is not escaped
    return Markup(f'<svg class="mk s-{symbol}" aria-hidden="true"><use href="#m-{symbol}"/>{tip}</svg>')


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("horarium.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(groups=GROUPS, letters=LETTERS, mark=mark, asset=asset_path)
    ours = (each for each in vars(formats).values() if isfunction(each) and each.__module__ == formats.__name__)
    made.filters |= {each.__name__: each for each in ours}
    made.filters["counted"] = counted
    return made


def render(template: str, values: Mapping[str, Any]) -> bytes:
    """A small page as bytes."""
    return _environment().get_template(template).render(values).encode("utf-8", "replace")


async def render_in_steps(template: str, values: Mapping[str, Any]) -> bytes:
    """A page as bytes. Other tasks have their turn while it is made."""
    if template not in _loaded:
        await asyncio.to_thread(_load, template)
    slices, parts = Slices(), list[str]()
    pieces = _environment().get_template(template).generate(values)
    while step := list(islice(pieces, PIECES_AT_ONCE)):
        parts += step
        await slices.give_way()
    return "".join(parts).encode("utf-8", "replace")


def _load(template: str) -> None:
    """It is compiled when it is first needed, with those that it holds, which takes a tenth of a second."""
    for name in (*IN_ALL, template):
        _environment().get_template(name)
    _loaded.add(template)


def takes_gzip(request: AnyRequest) -> bool:
    """Whether the browser reads gzip."""
    return "gzip" in request.headers.get("accept-encoding", "")


def page_answer(
    body: bytes, *, gzipped: bool, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Response:
    """A page with its headers. `gzipped`: the browser takes it."""
    given = [("content-security-policy", PAGE_POLICY), ("vary", "accept-encoding, cookie"), *headers]
    if gzipped and len(body) >= COMPRESSED_FROM:
        body = gzip.compress(body, 5)
        given.append(("content-encoding", "gzip"))
    return Ready(body, status=status, media_type="text/html; charset=utf-8", headers=given)


def going_on(request: AnyRequest, to: str, cookies: Sequence[str] = ()) -> Response:
    """A page that goes on by itself to an address of ours: what it asks for is asked by this site, so that the browser
    sends its cookies, though the visitor comes from another."""
    body = render("going-on.html", {"to": to.translate(NOT_IN_QUOTES)})
    return page_answer(body, gzipped=takes_gzip(request), headers=tuple(("set-cookie", cookie) for cookie in cookies))


# ---- files ------------------------------------------------------------------------------------------------------


@cache
def _files() -> dict[str, tuple[bytes, bytes, str]]:
    """Name -> content, the same compressed, type."""
    found: dict[str, tuple[bytes, bytes, str]] = {}
    for path in (*sorted(STATIC.glob("*")), *(ASSETS / name for name in FROM_NPM)):
        if path.suffix in TYPES and path.is_file():
            content = path.read_bytes()
            found[path.name] = content, gzip.compress(content, 9), TYPES[path.suffix]
    return found


@cache
def asset_path(name: str) -> str:
    """Where a file is served; its content is part of the address, so it may be kept for good."""
    content = _files().get(name)
    stamp = sha256(content[0]).hexdigest()[:12] if content else "missing"
    return f"/dashboard/{stamp}/{name}"


def file_answer(name: str, *, gzipped: bool) -> Response | None:
    """A file of ours, or None."""
    known = _files().get(name)
    if known is None:
        return None
    headers = [("cache-control", "public, max-age=31536000, immutable"), ("vary", "accept-encoding")]
    if gzipped:
        headers.append(("content-encoding", "gzip"))
    return Ready(known[1] if gzipped else known[0], media_type=known[2], headers=headers)


def when(instant: Instant | None, now: Instant, zone: str) -> Markup:
    """An instant as people read it: how far off, with the local time and UTC in its title."""
    if instant is None:
        return Markup("<span class=faint>\u2013</span>")
    tip = f"{formats.day_text(instant, zone)} {escape(zone)}, {formats.day_text(instant, 'UTC')} UTC"
    return Markup(f'<time datetime="{formats.utc_text(instant)}" title="{tip}">{formats.relative(instant, now)}</time>')


def banner(held: InForce, stats: Stats | None) -> dict[str, Any]:
    """A hold as each page says it. How many runs go on and wait is known of whole queues, as of the last count."""
    hold, stretch = held
    queues = None
    if stats is not None and not stats.queues_left_out and (hold.scope.all or hold.scope.queue is not None):
        queues = [one for one in stats.queues if is_held(hold.scope, one.queue)]
    return {
        "what": "" if hold.scope.all else scope_words(hold.scope),
        "until": None if stretch.ends_at >= FOREVER else stretch.ends_at,
        "since": stretch.begins_at,
        "hold": hold,
        "running": sum(one.running for one in queues or ()),
        "waiting": sum(one.due for one in queues or ()),
    }
