"""Writes the types of the TypeScript and the Go client from the OpenAPI document: `python tools/client_types.py`.

A test compares the two files with what is made here, so a field that is added to the API is added to both clients by
this command, in the same commit. Requests and answers that the clients do not speak of are left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from textwrap import indent
from typing import Any

from horarium.api.app import create_app
from horarium.node.backends import make_store
from horarium.node.runtime import Options, Runtime

CLIENTS = Path(__file__).resolve().parent.parent / "clients"
ROOTS = (
    "AddedRun", "BulkAnswer", "BulkRequest", "ClaimRequest", "CompleteRequest", "FailRequest", "Fires",
    "HeartbeatRequest", "JobDefinition", "JobPage", "LogRequest", "LogView", "PauseRequest", "PreviewRequest",
    "Problem", "PulseView", "Report", "RunBatch", "RunDefinition", "RunPage", "Settled", "Trigger", "TriggerRequest",
)  # fmt: skip
NOTE = "Made from the OpenAPI document by tools/client_types.py: not to be edited."
INITIALS = {"id": "ID", "url": "URL", "at": "At"}
Schema = dict[str, Any]


def openapi() -> Schema:
    """The document as a server gives it."""
    return asyncio.run(_ask_for_it())


async def _ask_for_it() -> Schema:
    runtime = Runtime(make_store("memory://"), Options())
    app = create_app(runtime.operations, runtime.claims, health=runtime.health, telemetry=runtime.telemetry)
    body = b""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    path = "/docs/openapi.json"
    scope: MutableMapping[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "GET",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    document: Schema = json.loads(body)
    return document


def spoken_of(schemas: Schema) -> dict[str, Schema]:
    """The roots and all that they refer to, by name."""
    found: dict[str, Schema] = {}
    left = list(ROOTS)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = schemas[name]
            left += _refs(schemas[name])
    return dict(sorted(found.items()))


NO_PART = frozenset({"discriminator", "propertyNames"})
"""Keywords of a schema that refer to no part of a value: the mark of a union's members, and the names of a map (which
msgspec tells since 0.23): both are texts here."""


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.rpartition("/")[2]
        for name, inner in value.items():
            if name not in NO_PART:
                yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)


# ---- TypeScript


def typescript(schemas: dict[str, Schema]) -> str:
    return f"// {NOTE}\n\n" + "\n".join(_ts_type(name, schema) for name, schema in schemas.items())


def _ts_type(name: str, schema: Schema) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_ts(schema)};\n"
    required = schema.get("required", ())
    fields = [
        f"  {field}{'' if field in required else '?'}: {_ts(inner)};\n" for field, inner in schema["properties"].items()
    ]
    return f"export interface {name} {{\n{''.join(fields)}}}\n"


def _ts(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            given = dict.fromkeys(_ts(inner) for inner in schema[union])
            return " | ".join(sorted(given, key="null".__eq__))
    match schema.get("type"):
        case "array":
            inner = _ts(schema.get("items", {}))
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case "object":
            inner = schema.get("additionalProperties", {})
            return f"Record<string, {_ts(inner) if isinstance(inner, dict) else 'unknown'}>"
        case "integer" | "number":
            return "number"
        case "string" | "boolean" | "null" as plain:
            return str(plain)
    return "unknown"


# ---- Go


def go(schemas: dict[str, Schema]) -> str:
    head = f'// {NOTE}\n\npackage horarium\n\nimport (\n\t"encoding/json"\n\t"time"\n)\n\n'
    types = "".join(_go_type(name, schema) for name, schema in schemas.items())
    return f"{head}// The words of the API, as requests and answers carry them.\ntype (\n{indent(types, chr(9))})\n"


def _go_type(name: str, schema: Schema) -> str:
    if "enum" in schema:
        about = schema.get("description", "")
        return f"// {name}: {about} One of {', '.join(sorted(schema['enum']))}.\n{name} string\n"
    if "properties" not in schema:
        return f"// {name}: {schema['description']} One of the types whose names end so.\n{name} = any\n"
    is_request = schema.get("additionalProperties") is False
    required = schema.get("required", ())
    rows = []
    for field, inner in schema["properties"].items():
        kind = _go(field, inner, is_request)
        if (
            field not in required
            and not kind.startswith(("*", "[]", "map["))
            and kind not in ("any", "json.RawMessage")
        ):
            kind = f"*{kind}"
        rows.append((_go_name(field), kind, f'`json:"{field}{"" if field in required else ",omitempty"}"`'))
    return f"// {name}: {_one_line(schema['description'])}\n{name} struct {{\n{_columns(rows)}}}\n"


def _columns(rows: list[tuple[str, str, str]]) -> str:
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "".join(f"\t{name:{first}} {kind:{second}} {tag}\n" for name, kind, tag in rows)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _go_name(field: str) -> str:
    return "".join(INITIALS.get(part, part[:1].upper() + part[1:]) for part in field.replace("-", "_").split("_"))


def _go(field: str, schema: Schema, is_request: bool) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema or "oneOf" in schema:
        given = [inner for inner in (schema.get("anyOf") or schema["oneOf"]) if inner.get("type") != "null"]
        if len(given) != 1:
            return "any"
        kind = _go(field, given[0], is_request)
        is_plain = kind.startswith(("*", "[]", "map[")) or kind in ("any", "json.RawMessage")
        return kind if is_plain or kind == "Trigger" else f"*{kind}"
    if "enum" in schema:
        return "string"
    match schema.get("type"):
        case "array":
            return f"[]{_go(field, schema.get('items', {}), is_request)}"
        case "object":
            inner = schema.get("additionalProperties", {})
            return f"map[string]{_go('', inner, is_request) if isinstance(inner, dict) else 'any'}"
        case "integer":
            return "int64" if field == "token" else "int"
        case "number":
            return "float64"
        case "boolean":
            return "bool"
        case "string":
            is_instant = schema.get("format") == "date-time" or (not is_request and field.endswith("_at"))
            return "time.Time" if is_instant or (field in ("at", "fires") and not is_request) else "string"
    return "any" if is_request else "json.RawMessage"


WRITTEN: tuple[tuple[Path, Callable[[dict[str, Schema]], str]], ...] = (
    (CLIENTS / "typescript" / "src" / "types.ts", typescript),
    (CLIENTS / "go" / "types.go", go),
)


def main() -> int:
    """Write both files."""
    schemas = spoken_of(openapi()["components"]["schemas"])
    for path, make in WRITTEN:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(schemas))
        print(f"{path.relative_to(CLIENTS.parent)}: {len(schemas)} types")
    return 0


if __name__ == "__main__":
    sys.exit(main())
