"""The node of a scheduler: made, and imported, once the scheduler is used. Defining handlers and jobs needs none."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

from horarium.clock import Clock
from horarium.delivery.handler import Handler
from horarium.library.named import Part
from horarium.node.backends import Backend
from horarium.node.options import Options

if TYPE_CHECKING:
    from horarium.node.runtime import Runtime

_MAKING = threading.Lock()


class Noded(Part):
    """Has a node. `_parts`: its parts."""

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
