"""The conformance kit: plays scenes to a worker in any language, and says what it did wrong.

player   starts the worker for each scene, and gathers the verdicts
scenes   what is played, and what a worker of protocol version 1 does then
stage    a real API on a store in memory, whose answers a scene may spoil; it keeps what it was asked
"""

from horarium.testing.conformance.player import Verdict, play
from horarium.testing.conformance.scenes import SCENES

__all__ = ["SCENES", "Verdict", "play"]
