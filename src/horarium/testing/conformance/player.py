"""Plays scenes to a worker: each to a process of its own, on a stage of its own, all at one time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from horarium.errors import InvalidSetting
from horarium.testing.conformance.scenes import SCENES, Scene
from horarium.testing.conformance.stage import QUEUE, Stage, Wrong
from horarium.testing.conformance.worker import WorkerProcess


class Verdict(Struct, frozen=True):
    """The end of a scene. `fault`: what the worker did wrong, in a sentence; None: nothing."""

    scene: str
    fault: str | None = None

    @property
    def passed(self) -> bool:
        return self.fault is None


async def play(command: Sequence[str], scenes: Sequence[str] = ()) -> list[Verdict]:
    """Play these scenes (left out: all) to the worker that `command` starts; a verdict for each, in their order. Raises
    InvalidSetting for a scene that there is not, or a command that can't be started."""
    known = {scene.name: scene for scene in SCENES}
    if unknown := [name for name in scenes if name not in known]:
        raise InvalidSetting(f"scene: there is no {unknown[0]!r}; known are {', '.join(known)}", field="scene")
    chosen = [known[name] for name in scenes or known]
    return await asyncio.gather(*(_play(scene, command) for scene in chosen))


async def _play(scene: Scene, command: Sequence[str]) -> Verdict:
    async with Stage(scene.clock_ahead_seconds) as stage:
        worker = WorkerProcess(command)
        await worker.start({"HORARIUM_URL": stage.url, "HORARIUM_KEY": stage.key, "HORARIUM_QUEUE": QUEUE})
        try:
            return Verdict(scene.name, await _fault(scene, stage, worker))
        finally:
            await worker.end()


async def _fault(scene: Scene, stage: Stage, worker: WorkerProcess) -> str | None:
    playing = asyncio.ensure_future(scene.play(stage, worker))
    ending = asyncio.ensure_future(worker.ended())
    try:
        await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done() and not worker.is_asked_to_end:
            said = worker.last_words()
            return f"the worker ended by itself with status {ending.result()}" + (f": {said}" if said else "")
        await playing
        stage.check()
    except Wrong as wrong:
        return str(wrong)
    finally:
        for task in (playing, ending):
            task.cancel()
        await asyncio.wait({playing, ending})
    return None
