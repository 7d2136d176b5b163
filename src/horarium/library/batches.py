"""Batches, as a `Scheduler` makes them: runs whose common end brings something about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from msgspec import to_builtins
from msgspec.structs import replace

from horarium.delivery.handler import HandlerFunction
from horarium.errors import InvalidRequest
from horarium.library.enqueuing import Enqueuing
from horarium.library.looking import timeout_seconds
from horarium.library.named import in_name_of_actor
from horarium.library.one_offs import EnqueueFields, Then, encode, with_key
from horarium.library.tasks import Task, following
from horarium.library.values import BatchStatus, Run
from horarium.model import Run as StoredRun
from horarium.model import RunFollow, own_labels
from horarium.model.batches import Batch as StoredBatch
from horarium.model.batches import BatchFollow, BatchOccasion, BatchOn, BatchState, BatchTold
from horarium.policies import Unique
from horarium.ports import BATCH_MAX, PAGE_MAX
from horarium.rules.uniqueness import stored_key
from horarium.wire.faults import converted

P = ParamSpec("P")
T = TypeVar("T")
Action = str | HandlerFunction | Task[Any, Any] | BatchFollow | Mapping[str, Any]
WAIT_SECONDS = 60.0
"""Of one question for the end of a batch."""
Actions = Action | Sequence[Action]
"""A handler (the function or its name), or `{"notify": CHANNEL}`, `{"trigger": JOB}`; or several of these."""


class BatchMethods(Enqueuing):
    """The batches of a scheduler."""

    def batch(
        self,
        name: str | None = None,
        *,
        on_finished: Actions | None = None,
        on_completed: Actions | None = None,
        on_failed: Actions | None = None,
        then: Then | Sequence[Then] | None = None,
        actor: str | None = None,
    ) -> Batch:
        """A new batch, for `async with`: it is open inside, and closed at the end; an error inside cancels it.
        `on_finished`: what follows once all its runs have ended; `on_completed`: if all of them completed; `on_failed`:
        at the first that failed. A handler gets the counts as its args. `then`: as `on_completed`, with args and
        options of its own, as in `enqueue`. Raises InvalidRequest."""
        asked = {"finished": on_finished, "completed": on_completed, "failed": on_failed}
        on = {BatchOccasion(when): self._actions(f"on_{when}", given) for when, given in asked.items() if given}
        from horarium.wire.batches import BatchName

        named: str | None = converted(name, BatchName | None, "name")
        return Batch(self, named, on, following(then, self._follow), actor)

    def _actions(self, field: str, given: Actions) -> tuple[BatchFollow, ...]:
        several = isinstance(given, Sequence) and not isinstance(given, str)
        return tuple(self._action(field, each) for each in (given if several else (given,)))  # type: ignore[union-attr]

    def _action(self, field: str, given: Any) -> BatchFollow:
        """Raises WrongArguments for a handler, registered here, that can't be called with its arguments."""
        if isinstance(given, BatchFollow):
            given = to_builtins(given)
        if not isinstance(given, Mapping):
            given = {"handler": self._program.handler_name(given, InvalidRequest)}
        follow: BatchFollow = converted(given, BatchFollow, field)
        if follow.handler is not None:
            told = BatchTold("", 0, 0, 0, 0) if follow.payload is None else follow.payload
            self._program.check_args(follow.handler, [encode(f"{field}.payload", told)])
        return follow

    async def get_batch(self, id: str) -> BatchStatus:
        """The batch of that id, with its counts. Raises NotFound."""
        return BatchStatus(await self._operations.batches.get(id))

    async def wait_for_batch(self, id: str, timeout: timedelta | float | None = None) -> BatchStatus:
        """The batch once it has finished, or as it is after that time (seconds). Raises NotFound."""
        seconds = timeout_seconds(timeout)
        while True:
            wait = WAIT_SECONDS if seconds is None else seconds
            batch = await self._operations.batches.get(id, wait)
            if timeout is not None or batch.finished_at is not None:
                return BatchStatus(batch)

    async def list_batches(self, state: str | None = None) -> list[BatchStatus]:
        """Batches, the newest first; with `state` (`open`, `closed`, `finished`) those alone."""
        wanted, found, after = None if state is None else converted(state, BatchState), list[StoredBatch](), None
        while True:
            page = await self._operations.batches.page(wanted, after, PAGE_MAX)
            found += page.items
            if (after := page.next_after) is None:
                return [BatchStatus(batch) for batch in found]

    @in_name_of_actor
    async def close_batch(self, id: str, *, actor: str | None = None) -> BatchStatus:
        """Let no more runs be added: it finishes once all have ended. Raises NotFound."""
        return BatchStatus(await self._operations.batches.close(id))

    @in_name_of_actor
    async def cancel_batch(self, id: str, reason: str | None = None, *, actor: str | None = None) -> BatchStatus:
        """Close it, and cancel its runs that have not ended. Raises NotFound."""
        return BatchStatus(await self._operations.batches.cancel(id, reason))

    @in_name_of_actor
    async def retry_batch(self, id: str, *, actor: str | None = None) -> BatchStatus:
        """Do its failed runs again: it is to finish again. Raises NotFound."""
        return BatchStatus(await self._operations.batches.retry(id))

    @in_name_of_actor
    async def _new_batch(
        self, name: str | None, on: BatchOn, then: tuple[RunFollow, ...], *, actor: str | None = None
    ) -> str:
        batch, _ = await self._operations.batches.create(name, on, open=True, then=then)
        return batch.id

    @in_name_of_actor
    async def _fill_batch(
        self,
        id: str,
        name: str | HandlerFunction,
        args: Sequence[Mapping[str, Any] | None],
        how: Mapping[str, Any],
        unique_key: str | None = None,
        *,
        actor: str | None = None,
    ) -> list[StoredRun]:
        runs = [self._keyed(run) for run in self._one_offs(name, args, how, unique_key)]
        runs = await self._placed(runs, None)
        added: list[StoredRun] = []
        size = 1 if runs and runs[0].unique_key is not None else BATCH_MAX  # of two with one key the first counts
        for start in range(0, len(runs), size):
            added += (await self._operations.batches.add(id, runs[start : start + size]))[1]
        return added

    def _keyed(self, run: StoredRun) -> StoredRun:
        """With the key of its handler's `unique`. Raises InvalidRequest for a rule that a batch can't keep."""
        rule = self._program.uniques.get(run.queue)
        if rule is None or run.unique_key is not None:
            return run
        if rule != Unique(rule.key):
            message = "a run of a batch holds its key for as long as it is kept; give this one a unique_key"
            raise InvalidRequest(f"unique: {message}", field="unique")
        return replace(run, unique_key=stored_key(with_key(rule, run.queue, own_labels(run), run.payload)))


class Batch:
    """A batch that takes runs. `id`: once it is entered."""

    def __init__(
        self, methods: BatchMethods, name: str | None, on: BatchOn, then: tuple[RunFollow, ...], actor: str | None
    ) -> None:
        self._methods, self._asked, self._actor = methods, (name, on, then), actor
        self.id = ""

    async def __aenter__(self) -> Self:
        self.id = await self._methods._new_batch(*self._asked, actor=self._actor)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._methods.close_batch(self.id, actor=self._actor)
        else:
            await self._methods.cancel_batch(self.id, f"{type(error).__name__} while it was filled", actor=self._actor)

    async def enqueue(
        self,
        name: str | HandlerFunction,
        args: Mapping[str, Any] | None = None,
        *,
        unique_key: str | None = None,
        **how: Unpack[EnqueueFields],
    ) -> Run:
        """A one-off run of a handler in this batch, as `Scheduler.enqueue` makes it; or the run that holds its unique
        key, which is not in it. Raises StateConflict for a batch that is closed."""
        (run,) = await self._methods._fill_batch(self.id, name, [args], how, unique_key, actor=self._actor)
        return Run(run)

    async def enqueue_many(
        self, name: str | HandlerFunction, args: Sequence[Mapping[str, Any] | None], **how: Unpack[EnqueueFields]
    ) -> list[str]:
        """The same in bulk, 1,000 a transaction. Their ids, in order."""
        return [run.id for run in await self._methods._fill_batch(self.id, name, args, how, actor=self._actor)]


def waiting(method: Callable[Concatenate[Batch, P], Awaitable[T]]) -> Callable[Concatenate[SyncBatch, P], T]:
    """The method of `SyncBatch` that waits for this one."""

    def call(self: SyncBatch, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._call(lambda: method(self._batch, *args, **kwargs))
        return answer

    update_wrapper(call, method)
    return call


class SyncBatch:
    """The same for programs without asyncio: `with scheduler.batch("import") as batch: batch.enqueue("row", {...})`.
    `call` has it done on the event loop of the scheduler."""

    def __init__(self, call: Callable[[Callable[[], Awaitable[Any]]], Any], batch: Batch) -> None:
        self._call, self._batch = call, batch

    @property
    def id(self) -> str:
        return self._batch.id

    def __enter__(self) -> Self:
        self._call(self._batch.__aenter__)
        return self

    __exit__ = waiting(Batch.__aexit__)
    enqueue = waiting(Batch.enqueue)
    enqueue_many = waiting(Batch.enqueue_many)
