"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from horarium.api import examples, triggers_schema
from horarium.api.docs import Docs
from horarium.errors import InvalidTrigger, NotFound
from horarium.triggers import parse_trigger
from horarium.triggers.registry import _OURS

from .conftest import Api, a_definition

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs" / "api.md"


async def document(api: Api) -> dict[str, Any]:
    made: dict[str, Any] = (await api.get("//docs/openapi.json")).json
    return made


@pytest.mark.slow
async def test_json_and_yaml_say_the_same(api: Api) -> None:
    reply = await api.get("//docs/openapi.yml")
    assert reply.headers["content-type"] == "application/yaml"
    assert YAML(typ="safe").load(reply.body) == await document(api)


async def test_the_document_is_made_beside_the_event_loop() -> None:
    threads: list[int] = []

    def build() -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {"openapi": "3.1.0"}

    asked: Any = None
    routes = {route.path: route for route in Docs(build).routes()}
    for path in ("/docs/openapi.json", "/docs/openapi.yml", "/docs/openapi.json"):
        answer: Any = await routes[path].handle(asked)
        assert b"3.1.0" in b"".join(answer.pieces)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_every_reference_in_the_document_leads_somewhere(api: Api) -> None:
    made = await document(api)
    reply = await api.get("//docs/openapi.json")
    references = set(re.findall(r'"#/([^"]+)"', reply.body.decode()))
    assert "components/schemas/Problem" in references
    for reference in references:
        found: Any = made
        for part in reference.split("/"):
            found = found[part]


async def test_every_route_is_documented_and_every_path_is_routed(api: Api) -> None:
    made = await document(api)
    documented = {(method.upper(), path) for path, item in made["paths"].items() for method in item}
    routed = {
        (route.methods[0], route.path)
        for route in api.app.routes
        if not route.path.startswith(("/docs", "/swagger-ui")) and route.path != "/"
    }
    assert documented == routed


async def test_every_endpoint_stands_in_the_docs_once(api: Api) -> None:
    text = DOCS.read_text().partition("## What holds everywhere")[0]
    for path, item in (await document(api))["paths"].items():
        for method in item:
            assert text.count(f"\n| `{method.upper()} {path.removeprefix('/api/v1')}` |") == 1, (method, path)


async def test_every_operation_is_described(api: Api) -> None:
    made = await document(api)
    for path, item in made["paths"].items():
        for method, operation in item.items():
            assert all(operation[field] for field in ("summary", "operationId", "tags", "responses")), (method, path)
            for parameter in operation["parameters"]:
                assert all(parameter[field] for field in ("description", "schema"))
            if "requestBody" in operation:
                assert {"400", "403", "413", "415", "422", "500", "503"} <= set(operation["responses"])


async def test_unions_have_a_discriminator(api: Api) -> None:
    schemas = (await document(api))["components"]["schemas"]
    assert set(schemas["JobDefinition"]["properties"]["target"]["discriminator"]["mapping"]) == {
        "http", "handler", "queue", "command", "bus", "external"
    }  # fmt: skip
    assert set(schemas["Trigger"]["discriminator"]["mapping"]) == set(_OURS)


async def test_a_key_is_asked_for_where_the_server_asks(api: Api, locked_api: Api) -> None:
    open_job = (await document(api))["paths"]["/api/v1/jobs"]["get"]
    locked_job = (await document(locked_api))["paths"]["/api/v1/jobs"]["get"]
    assert (open_job["security"], locked_job["security"]) == ([{}, {"apiKey": []}], [{"apiKey": []}])
    assert ("401" in open_job["responses"], "401" in locked_job["responses"]) == (False, True)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin", "day_match": "all", "gap": "skip"},
        {"type": "interval", "every_seconds": 60, "anchor": "2026-01-01T00:00:00Z"},
        {"type": "once", "at": "2026-01-01T00:00:00Z"},
        {"type": "rrule", "rrule": "FREQ=DAILY", "timezone": "UTC", "gap": "skip", "anchor": "2026-01-01T00:00:00Z"},
        {"type": "phrase", "text": "every day at 9am", "timezone": "UTC"},
        {"type": "any_of", "triggers": [{"type": "once", "at": "2026-01-01T00:00:00Z"}]},
        {"type": "except", "trigger": {"type": "cron", "expression": "@daily"}, "except": [{"dates": ["01-01"]}]},
        {"type": "between", "trigger": {"type": "cron", "expression": "@daily"}, "from": "2026-01-01T00:00:00Z"},
    ],
)
def test_a_documented_trigger_can_be_read(spec: dict[str, Any]) -> None:
    assert parse_trigger(spec).type == spec["type"]
    names = {each.__struct_config__.tag: each for each in triggers_schema.AnyTrigger.__args__}
    assert set(spec) - {"type"} <= set(names[spec["type"]].__struct_encode_fields__)


def test_a_field_that_is_not_documented_is_not_read() -> None:
    with pytest.raises(InvalidTrigger):
        parse_trigger({"type": "cron", "expression": "@daily", "when": 1})


async def test_what_text_must_look_like_is_said_wherever_a_pattern_can_say_it(api: Api) -> None:
    spec = await document(api)
    schemas = spec["components"]["schemas"]
    cursors = [
        each["schema"]["pattern"]
        for item in spec["paths"].values()
        for operation in item.values()
        for each in operation["parameters"]
        if each["name"] in ("cursor", "after")
    ]
    assert len(cursors) == 21
    assert {*cursors, schemas["BulkRequest"]["properties"]["cursor"]["anyOf"][0]["pattern"]} == {"^[A-Za-z0-9_-]+$"}


@pytest.mark.parametrize(
    "text",
    [
        "@DAILY",
        "@Midnight",
        "\t0 3 * * * ",
        "0\t3 * * *",
        "@reboot",
        "@every 5m",
        "@A",
        "0\x0b3 * * *",
        "\n@daily",
        "@daily\xa0",
    ],
)
async def test_a_cron_expression_looks_in_the_document_as_it_is_read(api: Api, text: str) -> None:
    pattern = (await document(api))["components"]["schemas"]["CronTrigger"]["properties"]["expression"]["pattern"]
    try:
        parse_trigger({"type": "cron", "expression": text})
    except InvalidTrigger:
        assert re.search(pattern, text) is None
    else:
        assert re.search(pattern, text) is not None


async def test_every_example_is_accepted(api: Api) -> None:
    for example in examples.JOBS:
        assert (await api.post("/jobs", example.value)).status == 201
    await api.add_job()
    for example in examples.PATCHES:
        assert (await api.send("PATCH", "/jobs/job", example.value)).status == 200
    for path, several in {
        "/jobs/job/backfill": examples.BACKFILLS, "/jobs/job/history": examples.HISTORIES, "/import": examples.IMPORTS,
        "/preview": examples.PREVIEWS, "/runs/settle": examples.SETTLEMENTS,
    }.items():  # fmt: skip
        for example in several:
            assert (await api.post(path, example.value)).status in (200, 201)
    for path, several in {
        "heartbeat": examples.HEARTBEATS, "complete": examples.COMPLETIONS, "fail": examples.FAILURES,
        "cancel": examples.REASONS, "log": examples.LOGS,
    }.items():  # fmt: skip
        assert (await api.post(f"/runs/{examples.RUN_ID}/{path}", several[0].value)).code == "not_found"
    assert (await api.post("/runs/claim", examples.CLAIMS[0].value)).status == 204


async def test_a_slash_too_many_leads_to_the_page(api: Api) -> None:
    reply = await api.get("//swagger-ui/")
    assert (reply.status, reply.headers["location"]) == (302, "../swagger-ui")


async def test_the_start_leads_to_the_page(api: Api) -> None:
    reply = await api.get("//")
    assert (reply.status, reply.headers["location"]) == (302, "swagger-ui")


def docs_with(tmp_path: Path, *names: str) -> Docs:
    for name in names:
        (tmp_path / name).write_text(name)
    return Docs(dict, tmp_path)


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = docs_with(tmp_path, "swagger-ui-bundle.js", "swagger-ui.css").page().decode()
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"\son\w+=", page)
    for address in re.findall(r'(?:src|href)="(swagger-ui/[^"]+)"', page):
        Docs(dict, tmp_path).file(address.removeprefix("swagger-ui/"))


def test_a_page_without_its_assets_says_what_is_missing(tmp_path: Path) -> None:
    page = docs_with(tmp_path, "swagger-ui.css").page().decode()
    assert "swagger-ui-bundle.js" in page
    assert "tools/build_assets.py" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_only_known_files_are_served(tmp_path: Path) -> None:
    docs = docs_with(tmp_path, "swagger-ui.css", "secret.txt")
    assert docs.file("swagger-ui.css") == (b"swagger-ui.css", "text/css")
    assert docs.file("initializer.js")[1] == "text/javascript"
    for name in ("secret.txt", "../docs.py", "swagger-ui-bundle.js", "\x00"):
        with pytest.raises(NotFound):
            docs.file(name)


async def test_the_pages_policy_allows_only_our_own_scripts(api: Api) -> None:
    policy = (await api.get("//swagger-ui")).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert (await api.get("//swagger-ui/initializer.js")).headers["content-type"] == "text/javascript; charset=utf-8"
    assert (await api.get("//swagger-ui/nope.js")).code == "not_found"
    assert (await api.get("//swagger-ui/..%2fdocs.py")).status == 404


async def test_the_document_stays_right_when_jobs_are_added(api: Api) -> None:
    before = await document(api)
    await api.post("/jobs", a_definition())
    assert await document(api) == before
