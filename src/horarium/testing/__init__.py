"""For tests of Horarium and of programs on it: a clock to move by hand, values, faults, and the contracts.

Only `testing.contract` needs pytest and hypothesis, and only it imports them.
"""

from horarium.testing.clock import ManualClock
from horarium.testing.faults import Fault, FaultyStore, by_chance, by_script
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed

__all__ = [
    "NOW",
    "Fault",
    "FaultyStore",
    "ManualClock",
    "a_change",
    "a_finished_run",
    "a_job",
    "a_run",
    "by_chance",
    "by_script",
    "completed",
]
