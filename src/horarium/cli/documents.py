"""Files of jobs: what format a file has, and the jobs in it, each with its place.

A file is read whole before anything is done with it: one that can't be read is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import click

from horarium.cli.crontab import Crontab, has_users, without_mark
from horarium.cli.elsewhere import (
    Common,
    celery_entries,
    eventbridge_entries,
    format_of,
    healthchecks_entries,
    kubernetes_entries,
)
from horarium.cli.entry import Entry
from horarium.cli.fields import is_cron, read_text
from horarium.cli.systemd import systemd_job
from horarium.errors import InvalidJob
from horarium.server.documents import line_of, read_yaml

KINDS = ("jobs", "calendars", "channels")
OVERRIDES = "overrides"
"""Of a job, in an export that has them; `job import` sets them, a plan passes over them."""
ENDINGS = (".yaml", ".yml", ".json")
Documents = dict[str, list[dict[str, Any]]]


def read_folders(paths: tuple[str, ...], kinds: tuple[str, ...] = KINDS) -> Documents:
    """All definitions in these files, and in the files of these folders. Raises InvalidJob, which names the file."""
    found: Documents = {kind: [] for kind in kinds}
    for path in paths:
        for file in _files(path):
            for document in read_yaml(read_text(file), file, InvalidJob):
                _add(found, document, file)
    return found


def _files(path: str) -> list[str]:
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        return [path]
    files = sorted(str(file) for file in folder.rglob("*") if file.suffix in ENDINGS and file.is_file())
    if not files:
        raise click.UsageError(f"{path} has no file that ends in {', '.join(ENDINGS)}")
    return files


def _add(found: Documents, document: Any, file: str) -> None:
    for kind, listed in _sections(document, file, found).items():
        if not all(isinstance(each, dict) for each in listed):
            raise InvalidJob(f"{file}: {kind} is no list of definitions, each with its name")
        found[kind] += [{name: value for name, value in each.items() if name != OVERRIDES} for each in listed]


def _sections(document: Any, source: str, kinds: Collection[str]) -> dict[str, list[Any]]:
    """The lists of a document, by kind; one that names no kind is a job, or a list of jobs. Raises InvalidJob."""
    if not isinstance(document, dict) or not document.keys() & set(kinds):
        return {"jobs": document if isinstance(document, list) else [document]}
    if unknown := sorted(str(key) for key in document if key not in kinds):
        raise InvalidJob(f"{source}: unknown beside {', '.join(kinds)}: {', '.join(unknown)}")
    for kind, listed in document.items():
        if not isinstance(listed, list) or (kind != "jobs" and not all(isinstance(each, dict) for each in listed)):
            raise InvalidJob(f"{source}: {kind} is no list of definitions, each with its name")
    return document


Beside = dict[str, list[dict[str, Any]]]
"""Calendars and channels, by kind."""
FORMATS = (
    "yaml", "json", "crontab", "system-crontab", "systemd", "kubernetes", "eventbridge", "healthchecks", "celery",
)  # fmt: skip


def read_definitions(path: str) -> list[dict[str, Any]]:
    """The definitions in a YAML or JSON file (`-`: the standard input). Raises InvalidJob, which names the place."""
    definitions = []
    for entry in read_entries(path):
        if entry.definition is None:
            raise InvalidJob(f"{entry.place}: {entry.error}")
        definitions.append(entry.definition)
    return definitions


def read_entries(
    path: str,
    format: str | None = None,
    *,
    queue: str = "shell",
    timezone: str = "UTC",
    prefix: str = "",
    fields: Mapping[str, Any] | None = None,
    mail: bool = False,
    beside: Beside | None = None,
) -> list[Entry]:
    """The jobs in a file (`-`: the standard input). YAML and JSON hold one job, a list of jobs, or `jobs:` with a list;
    JSON may also hold one job a line. `queue`, `timezone`, `prefix`, `fields` and `mail` are for files of others.
    `beside`: takes the calendars and channels in it; without it, they are refused.
    Raises InvalidJob for a file that can't be read."""
    common = Common("the standard input" if path == "-" else path, queue, prefix, fields or {})
    if format == "celery":
        return list(celery_entries(path, common))
    text, source = read_text(path), common.source
    format = format or _format_of(path, text)
    if not text.strip() and format != "json":
        raise InvalidJob(f"{source} is empty (`jobs: []` says that no job is meant)")
    if format == "json":
        return list(_json_entries(text, source, beside))
    if format == "yaml":
        documents = read_yaml(text, source, InvalidJob)
        return [entry for document in documents for entry in _entries(document, source, beside=beside)]
    if format == "kubernetes":
        return list(kubernetes_entries(read_yaml(text, source, InvalidJob), common))
    if format == "eventbridge":
        return list(eventbridge_entries(text, common))
    if format == "healthchecks":
        return list(healthchecks_entries(text, common))
    if format == "systemd":
        return list(common.entries([text], lambda unit: systemd_job(unit, path, queue, timezone)))
    with_user = format == "system-crontab" or has_users(text)
    crontab = Crontab(source, queue, timezone, with_user=with_user, prefix=prefix, fields=fields, mail=mail)
    return list(crontab.read(text))


def _format_of(path: str, text: str) -> str:
    name = PurePath(path).name.lower()
    if other := format_of(text):
        return other
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return "json" if _looks_like_json(text) or not text.strip() else "yaml"  # an export, kept under another name
    if name.endswith((".yaml", ".yml")):
        return "yaml"
    if path == "/etc/crontab" or path.startswith("/etc/cron.d/"):
        return "system-crontab"
    if "crontab" in name or name.endswith((".cron", ".tab")):
        return "crontab"
    return _format_in(text)


def _format_in(text: str) -> str:
    """By content: JSON begins with a bracket, a crontab's first line of work with a cron expression."""
    if _looks_like_json(text):
        return "json"
    stripped = map(without_mark, text.splitlines())
    lines = (line.split() for line in stripped if line and not line.startswith("#"))
    first = next((fields for fields in lines if "=" not in fields[0]), [])
    is_crontab = len(first) > 5 and is_cron(" ".join(first[:5])) and first[0] != "-"
    is_nickname = len(first) > 1 and first[0].startswith("@") and is_cron(first[0])
    return "crontab" if is_crontab or is_nickname else "yaml"


def _looks_like_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


# ---- JSON -------------------------------------------------------------------------------------------------------


def _json_entries(text: str, source: str, beside: Beside | None) -> Iterator[Entry]:
    """Each job as it is decoded, so that its line is known."""
    decoder = json.JSONDecoder()
    line, seen = 1, 0
    at = _next(text, 0)
    in_list = text[at : at + 1] == "["
    at = _next(text, at + 1) if in_list else at
    if at == len(text):
        raise InvalidJob(
            f"{source}: not JSON: it is empty" if not in_list else f"{source}: not JSON: it ends too early"
        )
    while at < len(text) and text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"{source}: not JSON: {error}") from None
        at = _next(text, at)
        yield from _entries(value, source, line, beside) if not in_list else [_entry(value, f"{source}:{line}")]
        if in_list:
            at = _after_item(text, at, source)
    if text[at + in_list :].strip():
        raise InvalidJob(f"{source}: not JSON: something follows its end")


def _after_item(text: str, at: int, source: str) -> int:
    """Behind the comma between two items, or at the bracket that ends the list."""
    if text[at : at + 1] == ",":
        at = _next(text, at + 1)
        if text[at : at + 1] not in ("]", ""):
            return at
    elif text[at : at + 1] == "]":
        return at
    line = text.count("\n", 0, at) + 1
    raise InvalidJob(f"{source}:{line}: not JSON: expected a comma or the end of the list")


def _next(text: str, at: int) -> int:
    """The next character that is no blank."""
    while at < len(text) and text[at] in " \t\r\n\ufeff":
        at += 1
    return at


# ---- what a document holds --------------------------------------------------------------------------------------


def _entries(document: Any, source: str, line: int | None = None, beside: Beside | None = None) -> Iterator[Entry]:
    others = beside or {}
    sections = _sections(document, source, ("jobs", *others))
    for kind in others.keys() & sections.keys():
        others[kind] += sections[kind]
    for index, job in enumerate(sections.get("jobs", ())):
        at = line_of(job) or (line if job is document else None)
        yield _entry(job, f"{source}: job {index + 1}" if at is None else f"{source}:{at}", index)


def _entry(job: Any, place: str, index: int | None = None) -> Entry:
    if isinstance(job, dict):
        return Entry(place, job)
    which = "it" if index is None else f"job {index + 1}"
    return Entry(place, error=f"{which} is no mapping; expected name, trigger and target")
