"""The methods of `Scheduler` for runs of any target that belong to no job, and for many runs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from msgspec import Struct

from horarium.clock import SECOND, Instant, to_instant
from horarium.errors import HorariumError, InvalidRequest, UnknownArgument
from horarium.library.fields import TargetFields, check_names, one_target, plain_fields
from horarium.library.looking import states_of
from horarium.library.named import Part, in_name_of_actor
from horarium.library.one_offs import RunFields, delay_seconds, encode_args, unique_rule, with_key
from horarium.library.values import Run
from horarium.model import State
from horarium.policies import Debounce, Unique
from horarium.ports import BATCH_MAX, RunFilter
from horarium.rules.uniqueness import field_of

if TYPE_CHECKING:
    from horarium.library.program import Program
    from horarium.operations.runs.bulk import Batch, Selection
    from horarium.wire.one_offs import RunDefinition


Step = Callable[[str | None, Instant], "Awaitable[Batch]"]
"""Does one batch: from where on, and when it may begin."""


class RunArguments(TargetFields, RunFields, total=False):
    """Everything that `add_run` takes: one target, and how the run is made."""

    unique_key: str | None
    unique: Unique | Mapping[str, Any] | None
    debounce: Debounce | Mapping[str, Any] | None


class Which(TypedDict, total=False):
    """Which runs are meant: `ids`, or those that fit all of the rest; how many a second; `dry_run`: only count."""

    ids: Sequence[str]
    job: str | None
    states: State | str | Sequence[State | str]
    queue: str | None
    since: datetime | None
    until: datetime | None
    error_contains: str | None
    per_second: float | None
    dry_run: bool


class Bulk(Struct):
    """How many runs matched, to how many it was done, and why not to the others."""

    matched: int = 0
    done: int = 0
    left: dict[str, int] = {}


class ManyRuns(Part):
    """Runs that belong to no job, and many runs at once."""

    _program: Program

    @in_name_of_actor
    async def add_run(self, *, actor: str | None = None, **fields: Unpack[RunArguments]) -> Run:
        """A run that belongs to no job, for one target of any type: `handler` (with `args`), `http`, `queue` or `bus`
        (with `payload`), or `target` in full. Due now, `at` an instant or after a `delay`. With a `unique_key` that
        another run holds, that run is returned. Raises InvalidRequest."""
        added = await self._operations.one_offs.add_run(_definition(self._program, fields))
        return Run(added.run)

    @in_name_of_actor
    async def add_runs(
        self, runs: Iterable[Mapping[str, Any]], *, actor: str | None = None
    ) -> list[Run | HorariumError]:
        """Many of them, each a mapping of what `add_run` takes, 1,000 a transaction. For each, in order, the run (or
        the one that holds its key), or its fault. Raises InvalidRequest for values that can't be read."""
        from horarium.operations.runs.one_offs import Added

        definitions = [_definition(self._program, fields) for fields in runs]
        found: list[Run | HorariumError] = []
        for start in range(0, len(definitions), BATCH_MAX):
            added = await self._operations.one_offs.add_runs(definitions[start : start + BATCH_MAX])
            found += [Run(each.run) if isinstance(each, Added) else each for each in added]
        return found

    @in_name_of_actor
    async def retry_runs(self, *, actor: str | None = None, **which: Unpack[Which]) -> Bulk:
        """New runs for the work of those that are meant (of a filter: failed ones, unless it has `states`). Each is
        retried once for as long as its retry is kept, so this may be called again. `per_second`: the new runs fall due
        at this pace."""
        from horarium.operations.runs.runs import RETRIED

        bulk, pace = self._operations.bulk, which.get("per_second")
        selection = _selection(which, RETRIED, frozenset({State.FAILED}))
        states = selection.where.states
        return await self._bulk(which, selection, lambda after, at: bulk.retry(selection, states, after, pace, at))

    @in_name_of_actor
    async def cancel_runs(
        self, *, reason: str = "cancelled by request", actor: str | None = None, **which: Unpack[Which]
    ) -> Bulk:
        """Cancel those that are meant: pending ones at once, running ones are asked to stop."""
        from horarium.operations.runs.bulk import CANCELLED

        operations, pace = self._operations, which.get("per_second")
        selection = _selection(which, CANCELLED, CANCELLED)
        states = selection.where.states

        async def cancel(after: str | None, at: Instant) -> Batch:
            await asyncio.sleep(max(0, at - operations.clock.now()) / SECOND)
            return await operations.bulk.cancel(selection, states, after, pace, reason)

        return await self._bulk(which, selection, cancel)

    async def _bulk(self, which: Which, selection: Selection, step: Step) -> Bulk:
        """All batches of it; of a dry run they are only counted."""
        bulk, states = self._operations.bulk, selection.where.states
        if which.get("dry_run"):
            return await _all_batches(lambda after, at: bulk.count(selection, states, after))
        return await _all_batches(step)


def _definition(program: Program, given: Mapping[str, Any]) -> RunDefinition:
    from horarium.wire.one_offs import read_run

    check_names(given, list(RunArguments.__annotations__), UnknownArgument)
    if given.get("handler") is not None:
        handler = program.handler_name(given["handler"], InvalidRequest)
        given = {**program.with_defaults(handler, {**given, "handler": handler})}
        given["args"] = program.with_named(handler, given.get("args"))
        if not given.keys() & {"unique_key", "unique", "debounce"}:
            given["unique"] = program.uniques.get(f"handler/{handler}")
        rule = unique_rule(given.get("unique_key"), given.get("unique"), given.get("debounce"), None)
        if rule is not None:
            field = field_of(rule).partition(".")[0]
            labels, payload = given.get("labels") or {}, encode_args(given.get("args"))
            given[field] = with_key(rule, f"handler/{handler}", labels, payload)
    fields = {name: value for name, value in given.items() if value is not None}
    fields = {name: value for name, value in fields.items() if name not in TargetFields.__annotations__}
    if "delay" in fields:
        fields["delay_seconds"] = delay_seconds(fields.pop("delay"))
    return read_run({"target": one_target(given, InvalidRequest), **plain_fields(fields)})


def _selection(which: Which, possible: frozenset[State], usual: frozenset[State]) -> Selection:
    check_names(which, list(Which.__annotations__), UnknownArgument)
    ids = which.get("ids")
    given = [name for name in which if name not in ("ids", "per_second", "dry_run") and which.get(name) is not None]
    if (ids is None) != bool(given):
        raise InvalidRequest("ids: give ids, or at least one field of a filter, and not both", field="ids")
    pace = which.get("per_second")
    if pace is not None and not pace > 0:
        raise InvalidRequest(f"per_second: must be more than 0, not {pace}", field="per_second")
    states = states_of(which.get("states", ())) or (usual if ids is None else possible)
    if impossible := sorted(states - possible):
        names = ", ".join(sorted(possible))
        raise InvalidRequest(f"states: nothing can be done to a {impossible[0]} run; give {names}", field="states")
    since, until = which.get("since"), which.get("until")
    where = RunFilter(
        job=which.get("job"),
        states=states,
        queue=which.get("queue"),
        since=None if since is None else to_instant(since),
        until=None if until is None else to_instant(until),
    )
    from horarium.operations.runs.bulk import Selection

    return Selection(ids=None if ids is None else tuple(ids), where=where, error_contains=which.get("error_contains"))


async def _all_batches(step: Step) -> Bulk:
    total = Bulk()
    after: str | None = None
    at: Instant = 0
    while True:
        batch = await step(after, at)
        total.matched += batch.matched
        total.done += batch.done
        for reason, count in batch.left.items():
            total.left[reason] = total.left.get(reason, 0) + count
        after, at = batch.after, batch.next_at
        if after is None:
            return total
        await asyncio.sleep(0)


__all__ = ["Bulk", "ManyRuns", "RunArguments"]
