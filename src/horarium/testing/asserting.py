"""What a program has enqueued, as a test sees it: read from the store in memory, at once, in any kind of test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from horarium.delivery.handler import HandlerFunction
from horarium.errors import InvalidRequest
from horarium.library.one_offs import encode_args
from horarium.library.sync import SyncScheduler
from horarium.library.values import Run, runs_page
from horarium.model import Cause
from horarium.ports import PAGE_MAX, RunFilter
from horarium.testing.swapping import AnyScheduler, at_once, store_of
from horarium.triggers.words import counted

SHOWN_MAX = 10


def enqueued(scheduler: AnyScheduler, handler: str | HandlerFunction | None = None) -> list[Run]:
    """The one-off runs that were enqueued (left out: for any handler), oldest due time first, in any state. The
    scheduler is on a store in memory: see `in_memory`, `travel` and the fixture `horarium_memory`."""
    inner = scheduler._scheduler if isinstance(scheduler, SyncScheduler) else scheduler
    name = None if handler is None else inner._program.handler_name(handler, InvalidRequest)
    store, found, after = store_of(scheduler), [], None
    while True:
        page = at_once(store.list_runs(RunFilter(queue=None if name is None else f"handler/{name}"), after, PAGE_MAX))
        found += [run for run in runs_page(page, inner._runtime.clock).items if run.cause is Cause.ENQUEUED]
        if (after := page.next_after) is None:
            return found[::-1]


def assert_enqueued(
    scheduler: AnyScheduler,
    handler: str | HandlerFunction,
    args: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
) -> Run:
    """Fail unless a run of this handler was enqueued that has these args among its own; `count`: the exact number
    of them. The latest one."""
    __tracebackhide__ = True
    wanted = _kept(args)
    runs = enqueued(scheduler, handler)
    fitting = [run for run in runs if _fits(wanted, run)]
    if not fitting or (count is not None and len(fitting) != count):
        which = f" with {wanted}" if wanted else ""
        found = "".join(f"\n  {_shown(run)}" for run in enqueued(scheduler)[:SHOWN_MAX]) or " nothing"
        expected = "a run" if count is None else f"{counted(count, 'run')}, not {len(fitting)},"
        name = getattr(handler, "__name__", handler)
        raise AssertionError(f"expected {expected} of {name!r}{which}; enqueued:{found}")
    return fitting[-1]


def assert_not_enqueued(
    scheduler: AnyScheduler, handler: str | HandlerFunction, args: Mapping[str, Any] | None = None
) -> None:
    """Fail if such a run was enqueued."""
    __tracebackhide__ = True
    wanted = _kept(args)
    for run in enqueued(scheduler, handler):
        if _fits(wanted, run):
            raise AssertionError(f"expected no such run; enqueued: {_shown(run)}")


def _args(run: Run) -> dict[str, Any]:
    args: dict[str, Any] = {} if run.payload is None else msgspec.json.decode(run.payload)
    return args


def _kept(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """As a run keeps them."""
    kept: dict[str, Any] = msgspec.json.decode(encode_args(args or {}) or b"{}")
    return kept


def _fits(wanted: Mapping[str, Any], run: Run) -> bool:
    args = _args(run)
    return all(name in args and args[name] == value for name, value in wanted.items())


def _shown(run: Run) -> str:
    return f"{run.queue.removeprefix('handler/')} {_args(run)} due {run.due_at:%Y-%m-%d %H:%M:%S}Z"
