"""One-off runs of handlers, as a `Scheduler` enqueues them: by itself, or in a transaction of the caller's own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from horarium.access.acting import acting
from horarium.clock import Clock
from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import Conflict, InvalidRequest
from horarium.library.named import Part, in_name_of_actor, origin_of
from horarium.library.one_offs import (
    OF_ONE_RUN,
    EnqueueFields,
    TaskCall,
    encode_args,
    follow_of,
    one_offs,
    unique_rule,
    wanted,
    with_key,
)
from horarium.library.program import Program
from horarium.library.tasks import following
from horarium.library.values import Run
from horarium.model import Run as StoredRun
from horarium.model import RunFollow, callers_key, own_labels
from horarium.node.backends import Backend
from horarium.node.options import Options
from horarium.operations.writing.auditing import told_runs
from horarium.policies import Debounce, Unique
from horarium.ports import BATCH_MAX, Placeholders, TransactionalStore
from horarium.triggers.words import quote

if TYPE_CHECKING:
    from horarium.node.runtime import Runtime


_MAKING = threading.Lock()


class Noded(Part):
    """Has a node: made, and imported, once the scheduler is used. Defining handlers and jobs needs none."""

    _parts: tuple[Backend, Options, Clock]
    _handlers: dict[str, Handler]

    @cached_property
    def _runtime(self) -> Runtime:
        with _MAKING:  # several threads may be the first
            if "_runtime" not in vars(self):
                from horarium.node.runtime import Runtime

                backend, options, clock = self._parts
                made = Runtime(backend.store, options, clock=clock, signal=backend.signal, parts=backend.parts)
                made.handlers = self._handlers
                vars(self)["_runtime"] = made
        runtime: Runtime = vars(self)["_runtime"]
        return runtime

    @property
    def _runs(self) -> bool:
        return "_runtime" in vars(self) and self._runtime.running


RACES_MAX = 3
"""How often a unique key is asked for whose holder was deleted just then."""


class Enqueuing(Noded):
    """Runs of handlers, and of commands."""

    _program: Program

    @in_name_of_actor
    async def enqueue(
        self,
        name: str | HandlerFunction,
        args: Mapping[str, Any] | None = None,
        *,
        unique_key: str | None = None,
        unique: Unique | Mapping[str, Any] | None = None,
        debounce: Debounce | Mapping[str, Any] | None = None,
        connection: Any = None,
        actor: str | None = None,
        **how: Unpack[EnqueueFields],
    ) -> Run:
        """A one-off run of a handler (its name, or a registered function): now, at an instant (`at`), or after a
        `delay`: a timedelta, seconds, or a text such as `5m`.

        With a `unique_key` that another run holds, that run is returned instead; a run holds its key for as long as it
        is kept (see `retention`), finished or not. Of runs that are due the highest `priority` (-1,000 to 1,000) is
        begun first. `unique` and `debounce` say for how long a key is held, and change the run that waits
        (docs/unique.md). With a `connection` of the caller's own (to the same PostgreSQL, by asyncpg, psycopg,
        SQLAlchemy or Django) the run is added in the caller's transaction, and exists once that commits. Raises
        InvalidRequest, and WrongArguments where the handler is registered here and can't be called with these args:
        both ValueErrors; and Conflict, with nothing added, where the key's holder is in a transaction that has not
        committed."""
        (run,) = self._one_offs(name, [args], how, unique_key)
        if unique_key is None and debounce is None and unique is None:
            unique = self._program.uniques.get(run.queue)
        rule = None if unique is debounce is None else unique_rule(unique_key, unique, debounce, connection)
        if rule is not None:
            rule = with_key(rule, run.queue, own_labels(run), run.payload)
            return Run((await self._operations.one_offs.add_unique(run, rule)).run)
        if run.rates or run.fair is not None:
            (run,) = await self._placed([run], connection)
        for _ in range(RACES_MAX):
            (added,) = await self._add_runs([run], connection)
            if added or unique_key is None:
                return Run(run)
            holder = await self._runtime.store.get_run_by_key(callers_key(unique_key))
            if holder is not None:
                return Run(holder)
        raise Conflict(
            f"unique_key: {unique_key!r} is held by a run that can't be read: it was added in a transaction that has "
            "not committed, yours perhaps"
        )

    def _checked(self, name: str | HandlerFunction, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Any:
        """The args, as a run keeps them, for a call of `enqueue` that is made later. Raises its errors of wrong
        ones."""
        unique_key, unique, debounce = (options.get(each) for each in ("unique_key", "unique", "debounce"))
        how = {each: value for each, value in options.items() if each not in OF_ONE_RUN}
        (run,) = self._one_offs(name, [args], how, unique_key)
        if (rule := unique_rule(unique_key, unique, debounce, None)) is not None:
            with_key(rule, run.queue, own_labels(run), run.payload)
        return None if run.payload is None else msgspec.json.decode(run.payload)

    @in_name_of_actor
    async def enqueue_many(
        self,
        name: str | HandlerFunction,
        args: Sequence[Mapping[str, Any] | None],
        *,
        connection: Any = None,
        actor: str | None = None,
        **how: Unpack[EnqueueFields],
    ) -> list[str]:
        """One-off runs of one handler in bulk, 1,000 a transaction; with a `connection`, all in that one. Their ids, in
        order."""
        args = list(args)
        runs = self._one_offs(name, args, how)
        if runs and self._program.uniques.get(runs[0].queue) is not None:
            return [(await self.enqueue(name, each, connection=connection, **how)).id for each in args]
        runs = await self._placed(runs, connection)
        await self._add_runs(runs, connection)
        return [run.id for run in runs]

    def enqueue_sql(
        self,
        name: str | HandlerFunction,
        args: Sequence[Mapping[str, Any] | None],
        *,
        placeholders: Placeholders = "$1",
        unique_key: str | None = None,
        actor: str | None = None,
        **how: Unpack[EnqueueFields],
    ) -> tuple[str, tuple[Any, ...]]:
        """A statement that enqueues, and its values, for any driver, synchronous ones too: the caller that executes it
        does so in a transaction of its own. `placeholders`: how that driver marks a value. 1 to 1,000 runs; a
        `unique_key` is for one. PostgreSQL only; the scheduler need not be open. Raises InvalidRequest."""
        if not 1 <= len(args) <= (BATCH_MAX if unique_key is None else 1):
            most = f"{BATCH_MAX:,}" if unique_key is None else "1 with a unique_key"
            raise InvalidRequest(f"args: {len(args)} runs given, 1 to {most} go into a statement", field="args")
        store, runs = self._transactional(), self._one_offs(name, args, how, unique_key)
        if unique_key is None:
            unique_rule(None, self._program.uniques.get(runs[0].queue), None, store)
        with acting(origin_of(actor, self.actor)):
            along = told_runs(runs)
        return store.add_runs_sql(runs, placeholders, along) if along else store.add_runs_sql(runs, placeholders)

    async def _placed(self, runs: list[StoredRun], connection: Any) -> list[StoredRun]:
        """In line for their rate limits and fairness keys, unless they are written in a transaction that may take its
        time."""
        in_line = connection is None and bool(runs) and (bool(runs[0].rates) or runs[0].fair is not None)
        return await self._operations.runs.lined_up(runs) if in_line else runs

    async def _add_runs(self, runs: Sequence[StoredRun], connection: Any) -> list[bool]:
        if connection is None:
            return await self._operations.runs.add_runs(runs)
        store = self._transactional()
        parts = (runs[start : start + BATCH_MAX] for start in range(0, len(runs), BATCH_MAX))
        added: list[bool] = []
        for part in parts:
            along = told_runs(part)
            added += await (
                store.add_runs_in(connection, part, along) if along else store.add_runs_in(connection, part)
            )
        return added

    def _transactional(self) -> TransactionalStore:
        """The store, if it can add runs in a transaction of the caller's."""
        store = self._runtime.store
        if not isinstance(store, TransactionalStore):
            raise InvalidRequest(
                "connection: this store can't add runs in a transaction of yours; PostgreSQL can", field="connection"
            )
        return store

    def _one_offs(
        self,
        name: object,
        args: Sequence[Mapping[str, Any] | None],
        how: Mapping[str, Any],
        unique_key: str | None = None,
    ) -> list[StoredRun]:
        handler = self._program.handler_name(name, InvalidRequest)
        if not isinstance(handler, str):
            raise InvalidRequest(f"name: {quote(handler)} is no handler's name", field="name")
        made = wanted(self._program.with_defaults(handler, how), unique_key)
        if handler in self._program.named:
            args = self._program.all_with_named(handler, args)
        payloads = [encode_args(given) for given in args]
        self._program.check_args(handler, payloads)
        then = following(made.get("then"), self._follow)
        _, clock, _, entropy = self._runtime.operations.context
        return one_offs(handler, payloads, made, clock.now(), entropy(10), then)

    def _follow(self, call: TaskCall) -> RunFollow:
        """The successor of this call, made as a run is. (It may have to wait for its args.)"""
        handler = self._program.handler_name(call.handler, InvalidRequest)
        how = wanted(self._program.with_defaults(handler, call.options))
        payload = None if call.args is None else encode_args(self._program.with_named(handler, call.args))
        if payload is not None:
            self._program.check_args(handler, [payload])
        then = following(how.get("then"), self._follow)
        (run,) = one_offs(handler, [payload], how, 0, bytes(10), then, follows=payload is None)
        return follow_of(call, run, how)
