"""The jobs of a program, declared as a whole: what the program lists is the truth.

Each declared job carries a label with the program's name. A job that has the label and is not in the list any more was
declared by an earlier version of the program: it is shown, and deleted if that is asked for. Jobs without the label are
never touched. Nothing is written before everything was checked. Programs without a name share one label, so they delete
nothing; a program that is given a name takes over the jobs that it lists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.errors import HorariumError, InvalidJob, InvalidRequest, NotFound
from horarium.library.fields import JobArguments
from horarium.operations.bounds.listing import pages_of
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter
from horarium.triggers import Trigger

if TYPE_CHECKING:
    from horarium.operations.facade import Operations
    from horarium.operations.jobs.importing import Put
    from horarium.wire.definitions import JobDefinition

PROGRAM_LABEL = "horarium/program"
"""The label of a declared job: which program declared it."""
UNNAMED = "main"
"""That of programs that have no name."""

log = logging.getLogger("horarium")


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
    operations: Operations, definitions: Sequence[JobDefinition], name: str | None, *, prune: bool, dry_run: bool
) -> Declared:
    """Bring the jobs of the program of this name to these definitions. Raises InvalidRequest, InvalidJob or
    InvalidTrigger, and then nothing was written."""
    from horarium.operations.jobs.importing import Put

    if prune and name is None:
        raise InvalidRequest(
            "prune: this program has no name, so that the jobs of all others without one would be deleted too; give it "
            "one, Scheduler(..., program='billing')",
            field="prune",
        )
    program = name or UNNAMED
    ours = [_labelled(definition, program) for definition in definitions]
    puts, owners = await _check(operations, ours, name)
    gone = await _gone(operations, {definition.name for definition in ours}, program)
    if not dry_run:
        for definition in ours:
            if puts[definition.name] is not Put.UNCHANGED:
                await operations.jobs.put_job(definition)
        for left in gone if prune else ():
            with suppress(NotFound):
                await operations.jobs.delete_job(left)
        _tell(name, {job: owners[job] for job in _those(puts, Put.UPDATED)}, gone, prune)
    return Declared(
        created=_those(puts, Put.CREATED),
        updated=_those(puts, Put.UPDATED),
        unchanged=_those(puts, Put.UNCHANGED),
        gone=gone,
        pruned=prune and not dry_run,
    )


def _labelled(definition: JobDefinition, program: str) -> JobDefinition:
    return replace(definition, labels={**definition.labels, PROGRAM_LABEL: program})


def _tell(name: str | None, updated: Mapping[str, str | None], gone: Sequence[str], prune: bool) -> None:
    """Log which jobs changed hands, or may have, and which are gone. `updated`: by whom each was declared before."""
    taken = {job: owner for job, owner in updated.items() if owner != (name or UNNAMED)}
    for job, owner in taken.items():
        before = "no program had declared it" if owner is None else "a program without a name had declared it"
        log.warning("job %s is %s now: %s", job, f"of the program {name}" if name else "of this program", before)
    changed = [job for job in updated if job not in taken]
    if name is None and changed:
        log.warning(
            "jobs that were declared before have changed: %s; if another program without a name declares them too, "
            "each start of one undoes the other's: give them names, Scheduler(..., program='billing')",
            ", ".join(changed),
        )
    if gone and prune:
        log.warning("jobs that the program %s no longer has are deleted: %s", name, ", ".join(gone))
    elif gone:
        log.warning(
            "jobs that %s declared earlier and this one no longer has: %s; they go on until they are deleted, as "
            "declare(..., prune=True) of a program with a name does",
            f"the program {name}" if name else "a program without a name", ", ".join(gone),
        )  # fmt: skip


async def _check(
    operations: Operations, ours: Sequence[JobDefinition], name: str | None
) -> tuple[dict[str, Put], dict[str, str | None]]:
    """The effect of putting each, and by whom it is declared so far. Raises the error of the first that can't be
    put."""
    puts: dict[str, Put] = {}
    owners: dict[str, str | None] = {}
    names = [definition.name for definition in ours]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"job {twice[0]!r} is declared twice", field="name")
    for start in range(0, len(ours), BATCH_MAX):
        batch = ours[start : start + BATCH_MAX]
        for stored in await operations.store.get_jobs([definition.name for definition in batch]):
            if stored is None:
                continue
            other = owners[stored.name] = stored.labels.get(PROGRAM_LABEL)
            if other not in (None, name, UNNAMED):
                raise InvalidJob(
                    f"job {stored.name!r} is declared by the program {other!r}; give one of the two another name",
                    field="name",
                )
        for definition, answer in zip(batch, await operations.importing.put_jobs(batch, dry_run=True), strict=True):
            if isinstance(answer, HorariumError):
                raise _named(definition.name, answer)
            puts[definition.name] = answer
    return puts, owners


def _named(name: str, error: HorariumError) -> HorariumError:
    return type(error)(f"job {name!r}: {error.message}", field=error.field)


async def _gone(operations: Operations, kept: set[str], program: str) -> tuple[str, ...]:
    """Jobs of the program that are not in its list any more."""
    where = JobFilter(labels={PROGRAM_LABEL: program})
    pages = pages_of(lambda after: operations.jobs.list_jobs(where, after, PAGE_MAX))
    return tuple([job.name async for page in pages for job in page if job.name not in kept])


def _those(puts: Mapping[str, Put], what: Put) -> tuple[str, ...]:
    return tuple(name for name, put in puts.items() if put is what)
