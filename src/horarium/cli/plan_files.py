"""Files and folders of definitions: `jobs`, `calendars` and `channels`, or jobs alone, in YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from horarium.cli.fields import read_text
from horarium.errors import InvalidJob
from horarium.server.documents import read_yaml

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
    if isinstance(document, dict) and document.keys() & found.keys():
        if unknown := sorted(str(key) for key in document if key not in found):
            raise InvalidJob(f"{file}: unknown beside {', '.join(found)}: {', '.join(unknown)}")
        sections = document
    else:
        sections = {"jobs": document if isinstance(document, list) else [document]}
    for kind, listed in sections.items():
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise InvalidJob(f"{file}: {kind} is no list of definitions, each with its name")
        found[kind] += [{name: value for name, value in each.items() if name != OVERRIDES} for each in listed]
