"""How much a random search tries: the whole in `make test`, a fifth of it in `make quick`.

It tries the same examples each time: a landing is no place to find an old mistake. There is no deadline: how long one
example takes on a busy machine says nothing. Where a bound on time is what a test is about, it bounds steps, or
measures processor time.
"""

from __future__ import annotations

from hypothesis import settings

from horarium.testing.contract.machine import MachineContract

WHOLE, QUICK = 100, 20
"""Examples of a search that says nothing else."""

settings.register_profile("whole", max_examples=WHOLE, deadline=None, derandomize=True)
settings.register_profile("quick", max_examples=QUICK, deadline=None, derandomize=True)


def use_profile(name: str) -> None:
    """To be called before any test module is imported."""
    settings.load_profile(name)
    MachineContract.machine_examples = share(MachineContract.machine_examples)


def share(examples: int) -> int:
    """So many examples, or the quick profile's share of them."""
    return max(examples * settings().max_examples // WHOLE, 1)


def tries(examples: int) -> settings:
    """Settings for a search of this size."""
    return settings(max_examples=share(examples))
