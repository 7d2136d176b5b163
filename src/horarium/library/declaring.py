"""The jobs of a program, declared as a whole: what the program lists is the truth.

Each declared job carries a label with the program's name. A job that has the label and is not in the list any more was
declared by an earlier version of the program: it is shown, and deleted if that is asked for. Jobs without the label are
never touched. Nothing is written before everything was checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.errors import HorariumError, InvalidJob, NotFound
from horarium.library.fields import JobArguments
from horarium.operations.facade import Operations
from horarium.operations.jobs.importing import Put
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter
from horarium.triggers import Trigger
from horarium.wire.definitions import JobDefinition

PROGRAM_LABEL = "horarium/program"
"""The label of a declared job: which program declared it."""


class JobSpec(NamedTuple):
    """A job as a program lists it: what `add_job` takes."""

    name: str
    trigger: Trigger | Mapping[str, Any]
    fields: JobArguments


class Declared(Struct, frozen=True):
    """The changes of a declaration (made or only shown), by the names of jobs. `gone`: declared earlier and no longer
    in the program; `pruned` says whether they were deleted."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    pruned: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def job(name: str, trigger: Trigger | Mapping[str, Any], **fields: Unpack[JobArguments]) -> JobSpec:
    """A job for `Scheduler.declare`, with the arguments of `add_job`. It is checked when it is declared."""
    return JobSpec(name, trigger, fields)


def spec_of(given: JobSpec | Mapping[str, Any]) -> JobSpec:
    """A job from what `declare` was given: a `job(...)`, or a mapping of the same. Raises InvalidJob."""
    if isinstance(given, JobSpec):
        return given
    if not isinstance(given, Mapping) or not {"name", "trigger"} <= given.keys():
        raise InvalidJob("declare: give job(name, trigger, ...), or a mapping that has at least `name` and `trigger`")
    fields: Any = {name: value for name, value in given.items() if name not in ("name", "trigger")}
    return JobSpec(given["name"], given["trigger"], fields)


async def declare(
    operations: Operations, definitions: Sequence[JobDefinition], program: str, *, prune: bool, dry_run: bool
) -> Declared:
    """Bring the program's jobs to these definitions. Raises InvalidJob or InvalidTrigger, and then nothing was
    written."""
    ours = [_labelled(definition, program) for definition in definitions]
    puts = await _check(operations, ours, program)
    gone = await _gone(operations, {definition.name for definition in ours}, program)
    if not dry_run:
        for definition in ours:
            if puts[definition.name] is not Put.UNCHANGED:
                await operations.jobs.put_job(definition)
        for name in gone if prune else ():
            with suppress(NotFound):
                await operations.jobs.delete_job(name)
    return Declared(
        created=_those(puts, Put.CREATED),
        updated=_those(puts, Put.UPDATED),
        unchanged=_those(puts, Put.UNCHANGED),
        gone=gone,
        pruned=prune and not dry_run,
    )


def _labelled(definition: JobDefinition, program: str) -> JobDefinition:
    return replace(definition, labels={**definition.labels, PROGRAM_LABEL: program})


async def _check(operations: Operations, ours: Sequence[JobDefinition], program: str) -> dict[str, Put]:
    """The effect of putting each. Raises the error of the first that can't be put."""
    puts: dict[str, Put] = {}
    names = [definition.name for definition in ours]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"job {twice[0]!r} is declared twice", field="name")
    for start in range(0, len(ours), BATCH_MAX):
        batch = ours[start : start + BATCH_MAX]
        for stored in await operations.store.get_jobs([definition.name for definition in batch]):
            other = program if stored is None else stored.labels.get(PROGRAM_LABEL, program)
            if stored is not None and other != program:
                raise InvalidJob(
                    f"job {stored.name!r} is declared by the program {other!r}; give one of the two another name",
                    field="name",
                )
        for definition, answer in zip(batch, await operations.importing.put_jobs(batch, dry_run=True), strict=True):
            if isinstance(answer, HorariumError):
                raise _named(definition.name, answer)
            puts[definition.name] = answer
    return puts


def _named(name: str, error: HorariumError) -> HorariumError:
    return type(error)(f"job {name!r}: {error.message}", field=error.field)


async def _gone(operations: Operations, kept: set[str], program: str) -> tuple[str, ...]:
    """Jobs of the program that are not in its list any more."""
    names: list[str] = []
    after: str | None = None
    while True:
        page = await operations.jobs.list_jobs(JobFilter(labels={PROGRAM_LABEL: program}), after, PAGE_MAX)
        names += [job.name for job in page.items if job.name not in kept]
        if page.next_after is None:
            return tuple(names)
        after = page.next_after


def _those(puts: Mapping[str, Put], what: Put) -> tuple[str, ...]:
    return tuple(name for name, put in puts.items() if put is what)
