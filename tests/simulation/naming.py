"""What the simulator says of a world, where something was broken on purpose."""

from __future__ import annotations

import re

from horarium.testing.simulate import Violation, simulate
from horarium.testing.simulate.world import Script


def said_of(seed: int, said: str, script: Script | None = None) -> bool:
    """Whether this world is a violation that is said in these words."""
    try:
        simulate(seed, script=script)
    except Violation as violation:
        return re.search(said, str(violation).split("\n")[0]) is not None
    return False
