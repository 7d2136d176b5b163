"""Writes two pages of the site from the code: the REST API from the OpenAPI document, Python from its docstrings."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import horarium
import horarium.client
import horarium.testing

START_SECONDS = 60
METHODS = ("get", "put", "post", "patch", "delete")


def write_references(source: Path) -> None:
    """rest.md and python.md."""
    (source / "rest.md").write_text(rest(document()))
    (source / "python.md").write_text("\n".join(python()))


def document() -> dict[str, Any]:
    """The OpenAPI document, as a server answers it."""
    command = [sys.executable, "-m", "horarium", "serve", "--store", "memory://", "--port", "0"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                log.write(line)
                if found := re.search(r"listening on (http://[^\s\"]+)", line):
                    with urlopen(f"{found[1]}/docs/openapi.json", timeout=START_SECONDS) as answer:
                        made: dict[str, Any] = json.load(answer)
                        return made
            log.seek(0)
            raise SystemExit(f"the server did not start:\n{log.read()}")
        finally:
            server.terminate()


def rest(found: Mapping[str, Any]) -> str:
    """Each operation by its group, with its parameters, an example and the answers."""
    groups: dict[str, list[str]] = {}
    for path, item in found["paths"].items():
        for method in METHODS:
            if method in item:
                operation = item[method]
                groups.setdefault(operation["tags"][0], []).append(operation_text(method, path, operation))
    count = sum(map(len, groups.values()))
    lines = [
        "# REST API, operation by operation",
        "",
        f"All {count} operations, written from the OpenAPI document of this version. A running server shows the same at"
        " `/swagger-ui`, and the document at `/docs/openapi.json`. Errors, pages of lists and limits:"
        " [REST API](api.md).",
    ]
    for group, texts in groups.items():
        lines += ["", f"## {group[:1].upper()}{group[1:]}", "", *texts]
    return "\n".join(lines) + "\n"


def operation_text(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### `{method.upper()} {path}`", "", operation.get("summary", "")]
    if operation.get("description"):
        lines += ["", operation["description"]]
    if parameters := [each for each in operation.get("parameters", ()) if "name" in each]:
        lines += ["", "| parameter | in | meaning |", "|---|---|---|"]
        lines += [f"| `{each['name']}` | {each['in']} | {cell(each.get('description', ''))} |" for each in parameters]
    for example in examples(operation.get("requestBody", {})):
        lines += ["", "Body:", "", "```json", json.dumps(example, indent=2, ensure_ascii=False), "```"]
    lines += ["", "| answer | |", "|---|---|"]
    lines += [f"| {status} | {cell(each.get('description', ''))} |" for status, each in operation["responses"].items()]
    return "\n".join([*lines, ""])


def examples(body: Mapping[str, Any]) -> Iterator[Any]:
    for content in body.get("content", {}).values():
        if "example" in content:
            yield content["example"]
        for named in content.get("examples", {}).values():
            yield named["value"]
            return


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def python() -> Iterator[str]:
    """Every public name of the three public modules, with its signature and its docstring."""
    yield "# Python, name by name"
    yield ""
    yield (
        "Everything that can be imported from `horarium`, `horarium.client` and `horarium.testing`, written from the"
        " docstrings of this version. Begin with [the library](library.md)."
    )
    for module in (horarium, horarium.client, horarium.testing):
        yield f"\n## {module.__name__}\n"
        yield from module_text(module)


def module_text(module: Any) -> Iterator[str]:
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        if name == "SyncScheduler":
            yield f"### {name}\n"
            yield "The same methods as [Scheduler](#scheduler), which wait for their end.\n"
        elif inspect.isclass(thing):
            yield f"### {name}\n"
            yield from class_text(module.__name__, name, thing)
        elif inspect.isfunction(thing):
            yield f"### {name}\n"
            yield from entry("function", f"{module.__name__}.{name}{signature(thing)}", thing)


def class_text(module: str, name: str, thing: type) -> Iterator[str]:
    yield from entry("class", f"{module}.{name}", thing)
    for member, value in inspect.getmembers(thing):
        if member.startswith("_") or not inspect.isfunction(value) or issubclass(thing, Exception):
            continue
        flags = [":async:"] if inspect.iscoroutinefunction(value) else []
        yield from entry("method", f"{module}.{name}.{member}{signature(value)}", value, flags)


def entry(kind: str, head: str, thing: Any, flags: list[str] | None = None) -> Iterator[str]:
    yield f"````{{py:{kind}}} {head}"
    yield from flags or []
    yield ""
    yield inspect.getdoc(thing) or ""
    if fields := unpacked(thing):
        yield f"\nFields: {', '.join(f'`{each}`' for each in fields)}."
    yield "````\n"


def unpacked(thing: Any) -> list[str]:
    """The names that `**fields: Unpack[...]` stands for."""
    if not inspect.isfunction(thing):
        return []
    for parameter in inspect.signature(thing).parameters.values():
        found = re.match(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if found and (kind := inspect.unwrap(thing).__globals__.get(found[1])) is not None:
            return list(kind.__annotations__)
    return []


def signature(thing: Any) -> str:
    """As written, without `self` and without the quotes of annotations."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "()"
    parameters = [each for each in found.parameters.values() if each.name != "self"]
    text = str(found.replace(parameters=parameters))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


if __name__ == "__main__":
    sys.stdout.write("\n".join(python()))
