"""`horarium store copy`: two URLs to two open stores, progress on stderr, the outcome on stdout.

The contents and the order of the copy are `horarium.node.copying`'s. Exit status 0 means that everything was compared
and is equal, 1 anything else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

from horarium.cli.output import cell, print_json
from horarium.cli.shell import FAILED, json_option
from horarium.errors import InvalidSetting
from horarium.server.config import mask_url
from horarium.server.sources import load_settings

if TYPE_CHECKING:
    from horarium.node.copying import Copied, Progress, Side

LINE_EVERY = 10_000
"""Away from a terminal, how many jobs or runs lie between two lines of progress."""
SHOWN = 20
"""How many differences are printed; --json prints more."""
STAGES = {"records": "copied records", "runs": "copied runs", "jobs": "copied jobs", "check": "compared runs"}

Notify = Callable[["Progress"], None]


@click.command(
    help="Copy all jobs and runs of a namespace to another store, then compare every one of them. Stop all nodes of "
    "both stores before. The source stays as it is. If it is interrupted, run it again: existing rows are "
    "passed over. Exit status 0 means that all jobs and runs were compared and are equal.\n\n"
    "\b\nExamples:\n"
    "  horarium store copy sqlite:///horarium.db postgresql://horarium@db/horarium\n"
    "  horarium store copy sqlite:///horarium.db postgresql://horarium@db/horarium --check-only"
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--namespace", metavar="VALUE", help="Namespace in both stores. [HORARIUM_NAMESPACE; default: default]")
@click.option(
    "--config", envvar="HORARIUM_CONFIG", metavar="FILE", help="Settings with the namespace, as YAML (HORARIUM_CONFIG)."
)
@click.option("--check-only", is_flag=True, help="Compare, and write nothing.")
@click.option("--force", is_flag=True, help="Go on even if nodes are at work; what they do meanwhile may be missed.")
@json_option
def copy(
    source: str, target: str, namespace: str | None, config: str | None, check_only: bool, force: bool, as_json: bool
) -> None:
    _check_urls(source, target, check_only)
    named = load_settings({"namespace": namespace}, os.environ, config).namespace
    with _progress(as_json) as notify:
        report = asyncio.run(_copy(source, target, named, notify, force=force, check_only=check_only))
    _print(report, as_json)
    if not report.ok:
        sys.exit(FAILED)


def _check_urls(source: str, target: str, check_only: bool) -> None:
    from horarium.node.backends import missing_file, scheme_of

    for place, url in (("FROM", source), ("TO", target)):
        if scheme_of(url) == "memory":
            raise InvalidSetting(f"{place}: a memory:// store lives in one process only; there is nothing to copy")
    if source == target:
        raise InvalidSetting("FROM and TO are the same store; give two")
    for place, url in (("FROM", source), ("TO", target)):
        if (place == "FROM" or check_only) and (path := missing_file(url)) is not None:
            raise InvalidSetting(f"{place}: no such file: {path}")


async def _copy(source: str, target: str, namespace: str, notify: Notify, *, force: bool, check_only: bool) -> Copied:
    from horarium.node.copying import copy

    async with _opened(source, namespace) as here, _opened(target, namespace) as there:
        return await copy(here, there, notify, force=force, check_only=check_only)


@asynccontextmanager
async def _opened(url: str, namespace: str) -> AsyncIterator[Side]:
    """A store with its clock going. Opening brings the schema up to date."""
    from horarium.node.backends import make_backend
    from horarium.node.copying import Side

    backend = make_backend(url, namespace)
    await backend.store.open()
    started = []
    try:
        for part in backend.parts:
            await part.start()
            started.append(part)
        yield Side(backend.store, backend.clock, mask_url(url))
    finally:
        for part in reversed(started):
            await part.stop()
        await backend.store.close()


# ---- progress


@contextmanager
def _progress(as_json: bool) -> Iterator[Notify]:
    """A bar on a terminal, lines elsewhere, nothing for programs."""
    if as_json:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with _bar() as notify:
            yield notify
    else:
        yield _lines()


def _lines() -> Notify:
    said: dict[str, int] = {}

    def notify(progress: Progress) -> None:
        step = progress.done // LINE_EVERY
        if step > said.get(progress.stage, 0) or progress.done == progress.total:
            of = "" if progress.total is None else f" of {progress.total:,}"
            click.echo(f"{STAGES[progress.stage]}: {progress.done:,}{of}", err=True)
        said[progress.stage] = step

    return notify


@contextmanager
def _bar() -> Iterator[Notify]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def notify(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(STAGES[progress.stage], total=progress.total)
            bars.update(tasks[progress.stage], completed=progress.done, total=progress.total)

        yield notify


# ---- outcome


def _print(report: Copied, as_json: bool) -> None:
    if as_json:
        print_json({"ok": report.ok, "stopped": report.stopped, "counts": report.counts, "problems": report.problems})
        return
    counts = report.counts
    click.echo(
        f"jobs: {counts.jobs_copied:,} copied, {counts.jobs_present:,} there already, {counts.jobs_equal:,} equal"
    )
    click.echo(
        f"runs: {counts.runs_copied:,} copied, {counts.runs_present:,} there already, {counts.runs_equal:,} equal"
    )
    click.echo(
        f"records: {counts.records_copied:,} copied, {counts.records_present:,} there already, "
        f"{counts.records_equal:,} equal"
    )
    for problem in report.problems[:SHOWN]:
        click.echo(cell(f"{problem.kind} {problem.what} {problem.id}: {problem.detail}"), err=True)
    click.echo(_verdict(report), err=not report.ok)


def _verdict(report: Copied) -> str:
    if report.ok:
        return "All jobs, runs and records are equal."
    found = f"{report.counts.problems:,}"
    if report.stopped:
        return f"Stopped: jobs that differ: {found}. Remove those jobs from the target, or copy to an empty store."
    return f"Not equal; differences: {found}."
