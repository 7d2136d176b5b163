"""Memory stores with a wrong idea of when a lease is lost."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import State
from horarium.ports import Beat, Pulse
from horarium.stores.memory import MemoryStore


class EndsWithTheLease(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        ended = run is not None and run.lease_expires_at is not None and run.lease_expires_at <= now
        return None if ended else super()._heartbeat(beat, now)


class BeatsForTheDead(MemoryStore):
    def _heartbeat(self, beat: Beat, now: Instant) -> Pulse | None:
        run = self._space.runs.get(beat.run_id)
        if run is not None and run.state is State.PENDING and run.token == beat.token:
            self._space.put_run(replace(run, state=State.RUNNING, lease_expires_at=now + 1))
        return super()._heartbeat(beat, now)
