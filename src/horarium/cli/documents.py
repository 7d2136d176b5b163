"""Files of jobs: what format a file has, and the definitions in it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from horarium.cli.crontab import jobs_of_crontab
from horarium.cli.fields import is_cron, read_text
from horarium.documents import read_json, read_yaml
from horarium.errors import InvalidJob

FORMATS = ("yaml", "json", "crontab")


def read_definitions(
    path: str, format: str | None = None, queue: str = "crontab", timezone: str = "UTC"
) -> list[dict[str, Any]]:
    """The definitions in a file (`-`: the standard input). YAML and JSON hold one job, a list of jobs, or `jobs:` with
    a list. `queue` and `timezone` are for a crontab. Raises InvalidJob, which names the place."""
    text = read_text(path)
    source = "the standard input" if path == "-" else path
    format = format or _format_of(path, text)
    if format == "crontab":
        return jobs_of_crontab(text, source, queue, timezone)
    documents = [read_json(text, source, InvalidJob)] if format == "json" else read_yaml(text, source, InvalidJob)
    return [job for document in documents for job in _jobs_in(document, source)]


def _format_of(path: str, text: str) -> str:
    name = PurePath(path).name.lower()
    if name.endswith(".json"):
        return "json"
    if name.endswith((".yaml", ".yml")):
        return "yaml"
    if "crontab" in name or name.endswith((".cron", ".tab")):
        return "crontab"
    return _format_in(text)


def _format_in(text: str) -> str:
    """By content: JSON begins with a bracket, a crontab's first line of work with a cron expression."""
    if text.lstrip().startswith(("{", "[")):
        return "json"
    lines = (line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    first = next((fields for fields in lines if "=" not in fields[0]), [])
    is_crontab = len(first) > 5 and is_cron(" ".join(first[:5])) and first[0] != "-"
    return "crontab" if is_crontab else "yaml"


def _jobs_in(document: Any, source: str) -> list[dict[str, Any]]:
    if isinstance(document, dict) and isinstance(document.get("jobs"), list):
        document = document["jobs"]
    jobs = document if isinstance(document, list) else [document]
    for index, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise InvalidJob(f"{source}: job {index + 1} is no mapping; expected name, trigger and target")
    return jobs
