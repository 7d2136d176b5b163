"""The deterministic simulator: many nodes, one store, one seed.

`simulate(seed)` runs the real services in virtual time against the memory store, through crashes, freezes, faults
before and after every store call, lost signals and stepped clocks, and checks at every write that nothing happens
that must never happen. The same seed gives the same trace. See docs/architecture/simulation.md.
"""

from horarium.testing.simulate.world import Report, Violation, World, simulate

__all__ = ["Report", "Violation", "World", "simulate"]
