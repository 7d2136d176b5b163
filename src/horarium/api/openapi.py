"""The OpenAPI 3.1 document, made from the route table and the very types that requests are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

import msgspec

from horarium.api.endpoints import Endpoint
from horarium.api.problems import MEDIA_TYPE, PROBLEMS, Problem, make_problem
from horarium.api.reach import bounds_of
from horarium.api.triggers_schema import EXCLUSIONS, AnyTrigger

REF = "#/components/schemas/"
DESCRIPTION = """Horarium says when, turns that into runs, and hands each run to what does the work.

Instants are RFC 3339 with an offset. Every list is paged: `next_cursor` of one page is `cursor` of the next, and null
on the last. Errors are problem details (RFC 9457) with a stable `code`. Delivery is at least once: use a run's
`idempotency_key` to make it once."""

TAGS = {
    "jobs": "What to run, when, under which policies.",
    "runs": "Their states, results and histories.",
    "batches": "Runs whose common end brings something about.",
    "work": "For workers: claim, heartbeat, report.",
    "access": "Who asks, keys, and the audit.",
    "queues": "How the keys of a queue share it.",
    "system": "Nodes and counts.",
    "health": "For those who watch the process.",
}

CURSOR = {"pattern": "^[A-Za-z0-9_-]+$"}
"""The form of a cursor. One of another form can't be read (400), like one that was made up, so no type checks it."""


_IN_PATH: dict[str, tuple[str, dict[str, Any]]] = {
    "name": ("The job's name.", {"minLength": 1, "maxLength": 200}),
    "id": ("The run's id.", {"minLength": 1, "maxLength": 64}),
    "queue": ("The queue, as in a claim.", {"minLength": 1, "maxLength": 220}),
    "key": ("The key of the limit.", {"minLength": 1, "maxLength": 200}),
    "session": ("The session's id, as the list has it.", {"minLength": 1, "maxLength": 200}),
    "instant": ("The fire time of the rule (RFC 3339).", {"format": "date-time"}),
}
_PARAMETERS = {
    name: {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string", **form}}
    for name, (text, form) in _IN_PATH.items()
}


def build_document(groups: Sequence[tuple[str, Sequence[Endpoint]]], *, version: str, keys: bool) -> dict[str, Any]:
    """The document for these endpoints, each group under its prefix. `keys`: whether the server asks for API keys."""
    endpoints = [endpoint for _, group in groups for endpoint in group]
    refs, schemas = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for prefix, group in groups:
        for endpoint in group:
            operation = _operation(endpoint, refs, schemas, keys)
            paths.setdefault(prefix + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Horarium", "version": version, "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "This server"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {code: _problem_response(code) for code in PROBLEMS},
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer", "description": "One of the server's API keys."}
            },
        },
    }  # fmt: skip


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each type's schema (by its repr), and the components that they refer to."""
    kinds: dict[str, Any] = {repr(kind): kind for kind in (Problem, AnyTrigger, *EXCLUSIONS)}
    for endpoint in endpoints:
        answers = [kind for kind, _ in endpoint.answers.values()]
        for kind in (endpoint.body, endpoint.query, *answers):
            if kind is not None:
                kinds[repr(kind)] = kind
    refs, schemas = msgspec.json.schema_components(kinds.values(), ref_template=REF + "{name}")
    by_kind = dict(zip(kinds, refs, strict=True))
    schemas["Trigger"] = by_kind[repr(AnyTrigger)] | {"title": "Trigger", "description": "When a job fires."}
    for struct in schemas.values():
        _tidy(struct)
    _describe(schemas)
    return by_kind, schemas


def _tidy(schema: dict[str, Any]) -> None:
    """Docstrings as one line; a union with a discriminator as `oneOf`."""
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if "discriminator" in schema and "anyOf" in schema:
        schema["oneOf"] = schema.pop("anyOf")
    for child in schema.values():
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, dict):
                _tidy(each)


def _describe(schemas: dict[str, Any]) -> None:
    """What the types can't say: triggers are read by their own package, and JSON text that we keep is any JSON."""
    trigger = {"$ref": REF + "Trigger"}
    for name in ("JobDefinition", "JobView", "PreviewRequest", "ExceptTrigger", "BetweenTrigger", "ExcludedAfter"):
        schemas[name]["properties"]["trigger"] = trigger
    schemas["AnyOfTrigger"]["properties"]["triggers"]["items"] = trigger
    excluded = [trigger, *({"$ref": REF + kind.__name__} for kind in EXCLUSIONS)]
    schemas["ExceptTrigger"]["properties"]["except"]["items"] = {"anyOf": excluded}
    _describe_changes(schemas)
    for name, schema in schemas.items():
        given = schema["properties"] if name.endswith(("Query", "Request")) else {}
        for field in ("cursor", "after"):
            if field in given:
                _string(given[field]).update(CURSOR)
    schemas["HttpTarget"]["properties"]["signing_secret"]["description"] = "Write-only: shown as asterisks."


def _string(schema: dict[str, Any]) -> dict[str, Any]:
    """The text in it, where it may be left out as null."""
    choices: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return next(choice for choice in choices if choice.get("type") == "string")


_MERGED_OBJECTS = {"trigger": "TriggerChanges", "target": "TargetChanges", "labels": "LabelChanges"}
_MERGED = ("CatchUp", "Retry", "Timeouts", "Concurrency", "Retention")


def _describe_changes(schemas: dict[str, Any]) -> None:
    """A replacement is a definition without need of a name; in a patch nothing is needed, and null is a value."""
    definition = schemas["JobDefinition"]
    needed = [name for name in definition["required"] if name != "name"]
    schemas["JobReplacement"] = definition | _named(schemas["JobReplacement"]) | {"required": needed}
    for name in _MERGED:
        schemas[f"{name}Patch"] = _all_nullable(schemas[name]) | {"title": f"{name}Patch"}
    patch = _all_nullable(definition) | _named(schemas["JobPatch"])
    for name, title in _MERGED_OBJECTS.items():
        schemas[title] = {"title": title, "type": "object", "description": f"What changes of the {name}."}
        patch["properties"][name] = {"anyOf": [{"$ref": REF + title}, {"type": "null"}]}
    for schema in patch["properties"].values():
        for choice in schema.get("anyOf", ()):
            if choice.get("$ref", "").removeprefix(REF) in _MERGED:
                choice["$ref"] += "Patch"
    schemas["JobPatch"] = patch


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"title": schema["title"], "description": schema["description"]}


def _all_nullable(struct: Mapping[str, Any]) -> dict[str, Any]:
    """The same struct with every field free to be left out or null."""
    properties = {}
    for name, schema in struct["properties"].items():
        kept = {key: value for key, value in schema.items() if key != "default"}
        choices = [dict(choice) for choice in kept.get("anyOf", [kept]) if choice != {"type": "null"}]
        properties[name] = {"anyOf": [*choices, {"type": "null"}]}
    return {**struct, "properties": properties, "required": []}


def _operation(endpoint: Endpoint, refs: Mapping[str, Any], schemas: Mapping[str, Any], keys: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": _parameters(endpoint, schemas),
        "responses": _responses(endpoint, refs, keys),
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.scope is not None:
        operation |= {"x-scope": str(endpoint.scope), "x-bounds": bounds_of(endpoint)}
    if endpoint.read is not None:
        operation["requestBody"] = _request_body(endpoint, refs)
    if not endpoint.open:
        operation["security"] = [{"apiKey": []}] if keys else [{}, {"apiKey": []}]
    return operation


def _parameters(endpoint: Endpoint, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [_PARAMETERS[name] for name in _PARAMETERS if f"{{{name}}}" in endpoint.path]
    if endpoint.query is not None:
        for name, schema in schemas[endpoint.query.__name__]["properties"].items():
            shown = dict(schema)
            description = shown.pop("description", None) or shown.get("items", {}).get("description", name)
            found.append({"name": name, "in": "query", "description": description, "schema": shown})
    for name, text in endpoint.headers.items():
        schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
        found.append({"name": name, "in": "header", "description": text, "schema": schema})
    return found


def _request_body(endpoint: Endpoint, refs: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": _body_schema(endpoint, refs)}
    if endpoint.examples:
        content["examples"] = {
            example.name.replace(" ", "-"): {"summary": example.name, "value": example.value}
            for example in endpoint.examples
        }
    # One media type, though a patch is read under two: generators make one function of each, and some of them clash.
    return {"required": not endpoint.optional_body, "content": {endpoint.body_types[0]: content}}


def _body_schema(endpoint: Endpoint, refs: Mapping[str, Any]) -> Any:
    """A put's body may leave the name to the path; a patch is any object."""
    schema = refs[repr(endpoint.body)]
    return schema if get_origin(endpoint.body) is not dict else {"type": "object"}


def _responses(endpoint: Endpoint, refs: Mapping[str, Any], keys: bool) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, (kind, text) in sorted(endpoint.answers.items()):
        responses[str(status)] = {"description": text}
        if kind is not None:
            responses[str(status)]["content"] = {endpoint.media_type: {"schema": refs[repr(kind)]}}
        if status == 201 and endpoint.name not in ("backfillJob", "createKey"):
            responses["201"]["headers"] = {
                "Location": {"description": "Where it is.", "schema": {"type": "string"}, "required": True}
            }
    by_status: dict[int, list[str]] = {}
    for code in _codes(endpoint, keys):
        by_status.setdefault(PROBLEMS[code][0], []).append(code)
    for status, codes in sorted(by_status.items()):
        responses.setdefault(str(status), _problem_responses(codes))
    return responses


def _codes(endpoint: Endpoint, keys: bool) -> list[str]:
    """The codes of its problems: its own, and those that come with what it is."""
    codes = [*endpoint.problems, "wrong_host", "head_too_large"]
    if endpoint.scope is not None:
        codes.append("forbidden")
    if not endpoint.open or endpoint.name == "metrics":
        codes.append("cross_site")
    if not endpoint.open:
        codes += ["malformed_request", "store_unavailable", "internal_error"]
        codes += ["unauthorized", "too_many_failures"] if keys else []
    if endpoint.query is not None:
        codes.append("invalid_request")
    if endpoint.read is not None:
        codes += ["malformed_body", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_request"]
    return sorted(set(codes))


def _problem_responses(codes: Sequence[str]) -> dict[str, Any]:
    if len(codes) == 1:
        return {"$ref": f"#/components/responses/{codes[0]}"}
    said = "; ".join(f"`{code}`: {PROBLEMS[code][1]}" for code in codes)
    return {"description": said, "content": {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}}}}


def _problem_response(code: str) -> dict[str, Any]:
    title = PROBLEMS[code][1]
    example = msgspec.to_builtins(make_problem(code, title))
    return {
        "description": f"`{code}`: {title}",
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}, "example": example}},
    }
