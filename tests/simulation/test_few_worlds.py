"""A sample of the simulator that takes a second: what `test_simulate.py` does with hundreds of seeds."""

from __future__ import annotations

from horarium.testing.simulate import simulate


def test_a_few_worlds_hold_every_invariant() -> None:
    assert sum(simulate(seed).runs for seed in range(2)) > 40


def test_a_world_with_a_broker_holds_every_invariant() -> None:
    assert simulate(6, on_bus=0.6).runs > 10
