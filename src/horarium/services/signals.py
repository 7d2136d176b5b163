"""Wake-ups within one process: a dictionary of callbacks. Nothing is queued: a wake-up that nobody waits for is lost,
and that is all right, since whoever begins to wait looks first."""

from __future__ import annotations

from collections.abc import Callable


class LocalSignal:
    """The Signal of one process. Used on the event loop only."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def publish(self, topic: str) -> None:
        for wake in tuple(self._wakes.get(topic, ())):
            wake()

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Callable[[], None]:
        wakes = self._wakes.setdefault(topic, [])
        wakes.append(wake)

        def unsubscribe() -> None:
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._wakes.get(topic) is wakes:
                del self._wakes[topic]

        return unsubscribe
