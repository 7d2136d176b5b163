"""How long callbacks of the event loop take."""

from __future__ import annotations

import asyncio
import gc
import time
from types import TracebackType
from typing import Any


class LongestCallback:
    """The longest that one callback of the event loop took, in CPU milliseconds of its thread. What is in memory at the
    start is left out of garbage collection, as a server does that has started (`server.process`)."""

    def __enter__(self) -> LongestCallback:
        gc.collect()
        gc.freeze()
        self.milliseconds = 0.0
        self._run = run = asyncio.Handle._run

        def measured(handle: Any) -> None:
            began = time.thread_time()
            run(handle)
            self.milliseconds = max(self.milliseconds, (time.thread_time() - began) * 1000)

        asyncio.Handle._run = measured  # type: ignore[assignment, method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        gc.unfreeze()
