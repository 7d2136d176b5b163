"""From bytes to checked values: bodies, query strings, cursors, names.

400 means that it can't be read at all, 422 that it was read and its content is wrong. Checks are strict and cheap at
once: a valid body is decoded once, straight into its struct; everything that costs more happens only after a refusal.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import Request

from horarium.access.acting import bound_caller
from horarium.api.limits import JSON_DEPTH_MAX, KEY_CHARS_MAX, QUERY_FIELDS_MAX, RULE_BYTES_MAX
from horarium.api.problems import (
    BodyCutOff,
    BodyTooLarge,
    InvalidContent,
    InvalidCursor,
    MalformedBody,
    MalformedRequest,
    UnsupportedMediaType,
)
from horarium.errors import InvalidRequest, InvalidTrigger, NotFound
from horarium.model.identity import is_run_id
from horarium.operations.bounds.reaching import is_sealed
from horarium.wire.definitions import JobDefinition
from horarium.wire.faults import Fault, fault_of, find_faults, numbers_too_long
from horarium.wire.numbers import has_whole, whole_numbers
from horarium.wire.views import JobView

T = TypeVar("T")

JSON_TYPES = ("application/json",)
PATCH_TYPES = ("application/json", "application/merge-patch+json")
READ_ONLY = frozenset(JobView.__struct_fields__) - frozenset(JobDefinition.__struct_fields__)
"""Fields of a job that the server sets. In a job that was read, edited and sent back they are ignored."""

_NEITHER = bytes(set(range(256)) - set(b'[]{}"'))
"""All but brackets and quotes."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}", re.ASCII)
_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_CHARS_MAX}}}")


# ---- headers ---------------------------------------------------------------------------------------------------------


FIRST_HEADERS = "horarium.headers"
"""The key in an ASGI scope of what `first_headers` found."""


def first_headers(scope: Any) -> Mapping[bytes, bytes]:
    """The first header of each name in an ASGI scope; looked for once."""
    found: Mapping[bytes, bytes] | None = scope.get(FIRST_HEADERS)
    if found is None:
        found = scope[FIRST_HEADERS] = dict(reversed(scope["headers"]))
    return found


def own_url(public_url: str | None, request: Request[Any]) -> str:
    """The address of this server that is known to be its own, or the one under which the request came."""
    return (public_url or str(request.base_url)).rstrip("/")


def peer_of(scope: Any) -> str:
    """The address that a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def header(scope: Any, name: bytes) -> str | None:
    """The first header of this name (in lower case) in an ASGI scope."""
    value = first_headers(scope).get(name)
    return None if value is None else value.decode("latin-1")


# ---- bodies -----------------------------------------------------------------------------------------------------


async def read_body(request: Request[Any], types: tuple[str, ...], bytes_max: int) -> bytes:
    """The body's bytes, within the route's limit and of one of these types. An empty body is of any type: some clients
    name one where they send nothing."""
    headers = first_headers(request.scope)
    coding = headers.get(b"content-encoding")
    if coding and coding.strip().lower() != b"identity":
        raise UnsupportedMediaType("the body is compressed; send it as it is", field="content-encoding")
    kind = headers.get(b"content-type", b"").decode("latin-1")
    fits = kind in types or kind.partition(";")[0].strip().lower() in types
    if not fits and headers.get(b"content-length") not in (None, b"0"):
        raise _unsupported(kind, types)
    body = await read_all(request, bytes_max)
    if body and not fits:
        raise _unsupported(kind, types)
    return body


async def read_all(request: Request[Any], bytes_max: int, kept: int | None = None) -> bytes:
    """The body, or the first `kept` bytes of it. One whose length says that it is too large is not read. Raises
    BodyTooLarge, BodyCutOff."""
    length = header(request.scope, b"content-length") or "0"
    try:
        announced = int(length)
    except ValueError:
        raise MalformedRequest(f"Invalid content-length: {length!r}") from None
    if announced > bytes_max:
        raise BodyTooLarge(bytes_max)
    kept = bytes_max if kept is None else kept
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise BodyCutOff("the client closed the connection before its body was complete")
        part, more = bytes(message.get("body", b"")), message.get("more_body", False)
        if size < kept:
            parts.append(part[: kept - size])
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge(bytes_max)
    return b"".join(parts)


def _unsupported(kind: str, types: tuple[str, ...]) -> UnsupportedMediaType:
    given = f"the body is {kind[:100]!r}" if kind else "the body has no Content-Type"
    return UnsupportedMediaType(f"{given}; send {' or '.join(types)}", field="content-type")


class BodyReader:
    """Reads bodies of one type. `nul`: whether text may hold a NUL (reports keep it as JSON text, jobs do not)."""

    def __init__(self, kind: Any, *, nul: bool = False) -> None:
        self.kind = kind
        self._nul = nul
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def __call__(self, body: bytes) -> Any:
        """Raises MalformedBody or InvalidContent."""
        check_text(body, nul=self._nul)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            return self._second_look(whole_numbers(decode_any(body), self.kind), error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedBody(f"the body is not JSON: {_reason(error)}") from None

    def _second_look(self, value: Any, first: msgspec.ValidationError) -> Any:
        """The value after all, if nothing but the writing of its numbers was wrong. Raises InvalidContent."""
        try:
            return msgspec.convert(value, self.kind)
        except msgspec.ValidationError:
            raise InvalidContent(find_faults(value, self.kind) or [fault_of(first)]) from None


def check_text(body: bytes, *, nul: bool) -> None:
    """Refuses an empty body, one that nests too deeply, and (unless `nul`) one with a NUL in a text."""
    if not body:
        raise MalformedBody("the body is empty; send a JSON object")
    if body.count(b"[") + body.count(b"{") > JSON_DEPTH_MAX and _nests_deeper(body, JSON_DEPTH_MAX):
        raise MalformedBody(f"the body nests deeper than {JSON_DEPTH_MAX} levels")
    if not nul and rb"\u0000" in body and _NUL.search(body):
        raise InvalidContent([Fault("", "a text holds a NUL character (\\u0000), which can't be kept; leave it out")])


def _nests_deeper(body: bytes, depth: int) -> bool:
    """Whether brackets (outside of texts) nest deeper; asked where there are more of them than that. Each round takes
    away the innermost pairs. A text lies behind an odd number of quotes, which stays so where two of a row go."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NEITHER)
    brackets = b"".join(plain.replace(b'""', b"").split(b'"')[::2])
    for _ in range(depth):
        shorter = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(shorter) == len(brackets):
            return brackets.count(b"[") + brackets.count(b"{") > depth
        brackets = shorter
    return bool(brackets)


def decode_any(body: bytes) -> Any:
    """JSON as plain data. Raises MalformedBody, or InvalidContent for a number that is out of range."""
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidContent(numbers_too_long(body) or [fault_of(error)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(f"the body is not JSON: {_reason(error)}") from None


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object as a dict."""
    check_text(body, nul=False)
    value = decode_any(body)
    if not isinstance(value, dict):
        raise InvalidContent([Fault("", f"expected an object, not {_json_type(value)}")])
    return value


def read_job(body: bytes) -> dict[str, Any]:
    """A job's fields, without those that the server sets."""
    return without_read_only(read_object(body))


def read_new_job(body: bytes) -> JobDefinition:
    """A checked definition. Raises MalformedBody, or InvalidContent that lists every fault."""
    check_text(body, nul=False)
    try:
        definition = _decode_definition(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return to_definition(read_job(body))
    if len(body) > RULE_BYTES_MAX:  # no text in it is longer than it is
        check_rule(definition.trigger)
    return definition


_decode_definition = msgspec.json.Decoder(JobDefinition).decode


def without_read_only(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A job's fields, without those that the server sets."""
    own = {name: value for name, value in fields.items() if name not in READ_ONLY}
    return cast(dict[str, Any], whole_numbers(own, JobDefinition))


def to_definition(fields: Mapping[str, Any]) -> JobDefinition:
    """A checked definition. Raises InvalidContent that lists every fault."""
    try:
        definition = msgspec.convert(fields, JobDefinition)
    except msgspec.ValidationError as error:
        raise InvalidContent(find_faults(fields, JobDefinition) or [fault_of(error)], "invalid_job") from None
    check_rule(definition.trigger)
    return definition


def check_rule(trigger: Any) -> None:
    """Refuses a rule with a text of more than 8 KiB."""
    pending = [trigger]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and len(value.encode()) > RULE_BYTES_MAX:
            said = f"trigger: a text of {len(value.encode()):,} bytes; at most {RULE_BYTES_MAX:,} are read"
            raise InvalidTrigger(said, field="trigger")
        if isinstance(value, dict | list):
            pending.extend(value.values() if isinstance(value, dict) else value)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(error).removeprefix("JSON is malformed: ").lower()


def _json_type(value: Any) -> str:
    names: dict[type, str] = {list: "an array", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# ---- query strings ----------------------------------------------------------------------------------------------


def read_query(request: Request[Any], kind: type[T]) -> T:
    """The query string as a struct. A list field may be repeated or split by commas; any other may be given once."""
    shape = cast(Hashable, kind)
    fields = _split(request.scope["query_string"], _lists(shape))
    for name in _instants(shape) & fields.keys():
        if not _DATE.match(fields[name]):
            raise InvalidContent([Fault(name, "expected an instant such as 2026-12-24T18:00:00+01:00")])
    for name in _whole(shape) & fields.keys():
        fields[name] = _FRACTION_OF_ZERO.sub("", fields[name])
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidContent(find_faults(fields, kind, strict=False) or [fault_of(error)]) from None


def _split(query: bytes, lists: Mapping[str, bool]) -> dict[str, Any]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        raise MalformedRequest(f"the query string is not UTF-8, or has over {QUERY_FIELDS_MAX} fields") from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            fields.setdefault(name, []).extend(value.split(",") if lists[name] else [value])
        elif name in fields:
            raise InvalidContent([Fault(name, "is given twice; give it once")])
        else:
            fields[name] = _PLUS.sub(r"\1+\2", value)
    return fields


_PLUS = re.compile(r"(T\d\d:\d\d:\d\d(?:\.\d+)?) (\d\d:\d\d)$")
"""An instant whose `+` was not escaped, and so arrived as a space."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]", re.ASCII)
"""How an instant begins. Without this look, a bare number would pass as seconds since 1970."""

_FRACTION_OF_ZERO = re.compile(r"(?<=\d)\.0+$", re.ASCII)
"""`75.0` is a whole number, as JSON Schema says."""

_SPLIT_BY_COMMA = frozenset({"state"})


@cache
def _lists(kind: Hashable) -> dict[str, bool]:
    return {
        field.name: field.name in _SPLIT_BY_COMMA
        for field in msgspec.structs.fields(cast(type[Struct], kind))
        if get_origin(get_args(field.type)[0] if hasattr(field.type, "__metadata__") else field.type) is list
    }


@cache
def _instants(kind: Hashable) -> frozenset[str]:
    fields = msgspec.structs.fields(cast(type[Struct], kind))
    return frozenset(field.name for field in fields if "datetime" in repr(field.type))


@cache
def _whole(kind: Hashable) -> frozenset[str]:
    fields = msgspec.structs.fields(cast(type[Struct], kind))
    return frozenset(field.name for field in fields if has_whole(field.type))


# ---- cursors ----------------------------------------------------------------------------------------------------

_CURSOR_VERSION = "1"


def write_cursor(what: str, after: str | None) -> str | None:
    """An opaque cursor of the list `what`; None stays None."""
    if after is None:
        return None
    return urlsafe_b64encode(f"{_CURSOR_VERSION}:{what}:{after}".encode()).decode().rstrip("=")


def read_cursor(what: str, cursor: str | msgspec.UnsetType, fits: Callable[[str], bool]) -> str | None:
    """The key after which the page begins. Raises InvalidCursor for anything that was not made for this list."""
    if not isinstance(cursor, str):
        return None
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
    except ValueError:
        text = ""
    version, _, rest = text.partition(":")
    list_name, _, after = rest.partition(":")
    if version != _CURSOR_VERSION or list_name != what or not fits(after):
        raise InvalidCursor(f"{cursor[:100]!r} is not a cursor of this list; give the `next_cursor` of the page before")
    return after


# ---- names ------------------------------------------------------------------------------------------------------


def is_name(text: str) -> bool:
    """Whether a job or node can have this name."""
    return _NAME.fullmatch(text) is not None


def is_place(text: str) -> bool:
    """Whether a list of jobs may go on there, for who asks."""
    return is_name(text) or (bound_caller() is not None and is_sealed(text))


def job_name(request: Request[Any], noun: str = "job") -> str:
    """The job, or other thing, that the path names. Raises NotFound for what none can be called: the store need not be
    asked."""
    name: str = request.path_params["name"]
    if not is_name(name):
        raise NotFound(f"there is no {noun} named {name[:200]!r}")
    return name


def new_name(request: Request[Any]) -> str:
    """The name in the path of what is to be defined. Raises InvalidRequest."""
    name: str = request.path_params["name"]
    if not is_name(name):
        raise InvalidRequest(
            f"name: {name[:200]!r} is not 1 to 200 letters, digits or . _ : @ -, beginning with a letter or digit",
            field="name",
        )
    return name


def path_id(request: Request[Any]) -> str:
    """The id that the path has, as far as any is that long."""
    return str(request.path_params["id"])[:200]


def run_id(request: Request[Any]) -> str:
    """The run that the path names. Raises NotFound for what no run's id looks like."""
    given: str = request.path_params["id"]
    if not is_run_id(given):
        raise NotFound(f"there is no run {given[:200]!r}")
    return given


def idempotency_key(request: Request[Any]) -> str | None:
    """The Idempotency-Key header, if there is one."""
    if b"idempotency-key" not in first_headers(request.scope):
        return None
    key = header(request.scope, b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidContent(
            [Fault("Idempotency-Key", f"expected 1 to {KEY_CHARS_MAX} visible ASCII characters without spaces")]
        )
    return key
