"""Runs that belong to no job, added from their definitions: one, or many in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import bound_caller
from horarium.errors import CallerError, Conflict, InvalidRequest
from horarium.model import Run, key_as_given, request_key, uuid7
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.reaching import require_holder
from horarium.operations.runs.runs import RunOperations
from horarium.operations.settling.holding import Holding
from horarium.operations.writing.auditing import require_reach
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.tracing import Tracing, asked_trace
from horarium.policies import Debounce, Unique
from horarium.ports import PAGE_MAX
from horarium.rules.uniqueness import debounced, field_of, generation_key, holds, replacement, rule_of, stored_key
from horarium.wire.definitions import TargetCheck
from horarium.wire.one_offs import RunDefinition, run_of

HOLDER_RACES_MAX = 3
"""How often a unique key is asked for whose holder was deleted just then."""


Outcome = Literal["created", "exists", "replaced", "debounced"]
GENERATIONS = "unique/"
"""What the names of records begin with that say at which generation a unique key is."""


class Added(Struct, frozen=True):
    """A run that was added, or the one that holds its unique key, changed perhaps."""

    run: Run
    outcome: Outcome

    @property
    def new(self) -> bool:
        return self.outcome == "created"


class OneOffs:
    """Adds one-off runs of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(
        self,
        context: Context,
        check_target: TargetCheck,
        runs: RunOperations,
        tracing: Tracing,
        holding: Holding,
    ) -> None:
        self._store, self._clock, self._entropy = context.store, context.clock, context.entropy
        self._tracing = tracing
        self._check_target = check_target
        self._runs = runs
        self._holding = holding

    async def add_run(self, definition: RunDefinition, key: str | None = None) -> Added:
        """Add one run. With a unique key that another run holds, that run is the answer. `key`: that of
        the request, where the run has none of its own."""
        run = self._run(definition, key)
        if (rule := _rule_of(definition)) is not None:
            return await self.add_unique(run, rule)
        run = await self._holding.said(run, None)
        (run,) = await self._runs.lined_up([run])
        for _ in range(HOLDER_RACES_MAX):
            (is_new,) = await self._runs.add_runs([run])
            found = Added(run, "created") if is_new else await self._holder(run)
            if isinstance(found, Added):
                return found
            if found is not None:
                raise found
        raise _held_unseen(run)

    async def add_runs(
        self, definitions: Sequence[RunDefinition], keys: Sequence[str | None] | None = None
    ) -> list[Added | CallerError | Conflict]:
        """Add many, those that are valid in one transaction for each 1,000. For each the run, or its fault. `keys`: as
        in `add_run`, of each."""
        answers: list[Added | CallerError | Conflict | None] = []
        runs: dict[int, Run] = {}
        for index, (definition, key) in enumerate(zip(definitions, keys or [None] * len(definitions), strict=True)):
            try:
                run = self._run(definition, key)
                require_reach(run)
                if (rule := _rule_of(definition)) is not None:
                    answers.append(await self.add_unique(run, rule))
                    continue
                runs[index] = await self._holding.said(run, None)
                answers.append(None)
            except (CallerError, Conflict) as error:
                answers.append(error)
        runs = dict(zip(runs, await self._runs.lined_up(list(runs.values())), strict=True))
        for _ in range(HOLDER_RACES_MAX):
            if not runs:
                break
            runs = await self._add(runs, answers)
        for index, run in runs.items():
            answers[index] = _held_unseen(run)
        return [answer for answer in answers if answer is not None]

    async def prepared(self, definitions: Sequence[RunDefinition], keys: Sequence[str | None]) -> list[Run]:
        """The runs of these definitions, to be added together. Raises the error of the first that can't be."""
        runs: list[Run] = []
        for index, (definition, key) in enumerate(zip(definitions, keys, strict=True)):
            try:
                if definition.unique is not None or definition.debounce is not None:
                    field = "debounce" if definition.unique is None else "unique"
                    raise InvalidRequest(f"{field}: a run of a batch may have a unique_key alone", field=field)
                runs.append(await self._holding.said(self._run(definition, key), None))
            except CallerError as error:
                field = f"runs[{index}].{error.field}" if error.field else f"runs[{index}]"
                raise type(error)(f"runs[{index}].{error.message}", field=field) from None
        return await self._runs.lined_up(runs)

    async def add_unique(self, run: Run, rule: Unique | Debounce) -> Added:
        """Add this run, or find the one that holds the key of its rule, which is changed if that says so. Of a claim
        and a change that race one comes first: then the other finds nothing to take, or nothing that waits."""
        if isinstance(rule, Debounce):
            if run.due_at != run.created_at:
                raise InvalidRequest(
                    "debounce: it says when the run is due; leave out `at` and the delay", field="debounce"
                )
            run = debounced(run, rule, run.created_at, self._clock.now())
        key = stored_key(rule)
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            record = await self._generation(key)
            wanted = replace(run, unique_key=generation_key(key, record.version - 1))
            holder = await self._store.get_run_by_key(wanted.unique_key or "")
            if holder is None:
                (wanted,) = await self._runs.lined_up([wanted])
                if not (await self._runs.add_runs([wanted]))[0]:
                    continue
                if record.version > 1:  # it may have been deleted meanwhile
                    await self._store.put_records([RecordChange(record, 0)])
                return Added(wanted, "created")
            await require_holder(self._store, holder, wanted, field_of(rule))
            now = self._clock.now()
            if not holds(holder, rule, now):
                following = replace(record, version=record.version + 1)
                await self._store.put_records([RecordChange(following, record.version if record.version > 1 else 0)])
                continue
            after = replacement(holder, wanted, rule, now)
            if after is None:
                return Added(holder, "exists")
            if await self._runs.replace_run(holder, after, now):
                return Added(after, "debounced" if isinstance(rule, Debounce) else "replaced")
        raise contended(f"the unique key {rule.key!r}")

    async def prune_keys(self, after: str | None) -> str | None:
        """Of a page of keys that went on to another generation, delete those of which no run is kept. Where to go
        on."""
        page = await self._store.list_records(RecordFilter(GENERATIONS), after, PAGE_MAX)
        for record in page.items:
            key = generation_key(record.name.removeprefix(GENERATIONS), record.version - 1)
            if await self._store.get_run_by_key(key) is None:
                await self._store.put_records([record.removal()])
        return page.next_after

    async def _generation(self, key: str) -> Record:
        """The record whose version says at which generation a key is: one less. Of most keys there is none, which says
        the same as one of version 1."""
        name = GENERATIONS + key
        return (await self._store.get_records([name]))[0] or Record(name=name, body=b"")

    def _run(self, definition: RunDefinition, key: str | None) -> Run:
        now, caller = self._clock.now(), bound_caller()
        if caller is not None and caller.labels is not None:
            definition = replace(definition, labels=dict(caller.marked(definition.labels)))
        run = run_of(definition, id=uuid7(now, self._entropy(10)), now=now, check_target=self._check_target)
        if run.unique_key is None and key is not None:
            run = replace(run, unique_key=request_key(key))
        return self._tracing.mark(run, asked_trace())

    async def _add(self, runs: dict[int, Run], answers: list[Added | CallerError | Conflict | None]) -> dict[int, Run]:
        """Add these, and answer for them. Those whose unique key is held by a run that is not to be found."""
        added = await self._runs.add_runs(list(runs.values()))
        left: dict[int, Run] = {}
        for (index, run), is_new in zip(runs.items(), added, strict=True):
            found = Added(run, "created") if is_new else await self._holder(run)
            if found is None:
                left[index] = run
            else:
                answers[index] = found
        return left

    async def _holder(self, run: Run) -> Added | CallerError | Conflict | None:
        """The run that holds this one's unique key, if it is to be found, and may be the answer."""
        holder = None if run.unique_key is None else await self._store.get_run_by_key(run.unique_key)
        if holder is None:
            return None
        try:
            await require_holder(self._store, holder, run)
        except (CallerError, Conflict) as refusal:
            return refusal
        return Added(holder, "exists")


def _rule_of(definition: RunDefinition) -> Unique | Debounce | None:
    return rule_of(definition.unique_key, definition.unique, definition.debounce)


def _held_unseen(run: Run) -> Conflict:
    key = key_as_given(run.unique_key)
    return Conflict(
        f"unique_key: {key!r} is held by a run that can't be read: it was added in a transaction "
        "that has not committed",
        field="unique_key",
    )


__all__ = ["HOLDER_RACES_MAX", "Added", "OneOffs"]
