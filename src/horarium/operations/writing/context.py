"""The collaborators of every operation."""

from __future__ import annotations

from typing import NamedTuple

from horarium.clock import Clock
from horarium.operations.writing.contention import Entropy
from horarium.ports import Signal, Store


class Context(NamedTuple):
    """One namespace, as operations reach it. `entropy`: that many random bytes."""

    store: Store
    clock: Clock
    signal: Signal
    entropy: Entropy
