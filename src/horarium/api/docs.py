"""The document and the page that shows it. All that the page loads is served from here: it works without a network.

Swagger UI is not part of the source: the build puts it into `assets/` (see hatch_build.py). Where it is missing, the
page says so, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import Response

from horarium.api.answers import Ready
from horarium.api.routing import AnyRequest, Route
from horarium.errors import NotFound
from horarium.operations.bounds.evaluating import in_thread

HERE = Path(__file__).parent
ASSETS = HERE / "assets"
SCRIPT_TYPE = "text/javascript"
FILES = {
    "swagger-ui-bundle.js": SCRIPT_TYPE,
    "swagger-ui.css": "text/css",
    "LICENSE": "text/plain",
    "NOTICE": "text/plain",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Horarium API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="swagger-ui/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="swagger-ui/swagger-ui-bundle.js"></script>
<script src="swagger-ui/initializer.js"></script>
<noscript>Swagger UI needs JavaScript. The document itself is at <a href="docs/openapi.json">docs/openapi.json</a>.
</noscript>
</body>
</html>
"""
MISSING = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Horarium API</title><link rel="icon" href="data:,"></head>
<body>
<h1>Swagger UI is not installed</h1>
<p>Its files are taken from npm when Horarium is built; this copy was built where that was not possible. Missing:
<code>horarium/api/assets/swagger-ui-bundle.js</code> and <code>swagger-ui.css</code>.</p>
<p>With a network, <code>python tools/build_assets.py</code> in a clone, or installing Horarium again, brings them.</p>
<p>The OpenAPI document is complete: <a href="docs/openapi.json">docs/openapi.json</a>,
<a href="docs/openapi.yml">docs/openapi.yml</a>.</p>
</body>
</html>
"""


class Docs:
    """Serves the document as JSON and YAML, and the page. Each is made when it is first asked for, in a thread."""

    def __init__(self, build: Callable[[], dict[str, Any]], assets: Path = ASSETS) -> None:
        self._build = build
        self._assets = assets

    @cached_property
    def as_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self._build()), indent=2)

    @cached_property
    def as_yaml(self) -> bytes:
        """The document as YAML 1.2, written in a hundredth of the time that a library takes."""
        return "".join(_lines(self._build(), "\n")).lstrip().encode() + b"\n"

    def page(self) -> bytes:
        """The page, or why there is none."""
        complete = all((self._assets / name).is_file() for name in ("swagger-ui-bundle.js", "swagger-ui.css"))
        return (PAGE if complete else MISSING).encode()

    def file(self, name: str) -> tuple[bytes, str]:
        """One file of the page and its type. Raises NotFound."""
        if name == "initializer.js":
            return (HERE / "swagger.js").read_bytes(), SCRIPT_TYPE
        if name not in FILES or not (self._assets / name).is_file():
            raise NotFound(f"there is no file {name[:100]!r} here")
        return (self._assets / name).read_bytes(), FILES[name]

    def routes(self, *, home: bool = True) -> list[Route]:
        """`home`: `/` leads here."""

        async def openapi_json(request: AnyRequest) -> Response:
            return Ready(await in_thread(lambda: self.as_json))

        async def openapi_yaml(request: AnyRequest) -> Response:
            return Ready(await in_thread(lambda: self.as_yaml), media_type="application/yaml")

        async def swagger_ui(request: AnyRequest) -> Response:
            if request.scope.get("raw_path", b"").endswith(b"/"):
                return Ready(status=302, headers=[("location", "../swagger-ui")])
            return Ready(self.page(), media_type="text/html", headers=[("content-security-policy", PAGE_POLICY)])

        async def swagger_file(request: AnyRequest) -> Response:
            body, media_type = self.file(request.path_params["file"])
            return Ready(body, media_type=media_type, headers=[("cache-control", "max-age=3600")])

        async def to_docs(request: AnyRequest) -> Response:
            return Ready(status=302, headers=[("location", "swagger-ui")])

        handlers = {
            "/docs/openapi.json": openapi_json,
            "/docs/openapi.yml": openapi_yaml,
            "/swagger-ui": swagger_ui,
            "/swagger-ui/{file}": swagger_file,
            **({"/": to_docs} if home else {}),
        }
        return [
            Route(path=path, methods=("GET", "HEAD"), name=handle.__name__, handle=handle)
            for path, handle in handlers.items()
        ]


_PLAIN = re.compile(r"(?!(?:null|true|false)$)[a-z]{4}[A-Za-z]*")
"""Keys that are no other value in YAML 1.1 or 1.2 where they have no quotes."""


def _lines(value: Any, line: str) -> Iterator[str]:
    """Plain data as YAML behind a key or a dash; `line`: the end of a line, and how far what lies within is indented.
    Texts are as in JSON, which YAML 1.2 holds."""
    if value and isinstance(value, dict):
        for name, each in value.items():
            yield f"{line}{name}:" if _PLAIN.fullmatch(name) else f"{line}{_scalar(name)}:"
            yield from _lines(each, f"{line}  ")
    elif value and isinstance(value, list):
        for each in value:
            yield f"{line}-"
            yield from _lines(each, f"{line}  ")
    else:
        yield f" {_scalar(value)}"


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
