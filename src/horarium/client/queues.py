"""The queues of a server, as `Client.queues`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from horarium.client.transport import Transport, segment


class Queues:
    """What is set for queues: the weights of their fairness keys (docs/fairness.md)."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Iterator[dict[str, Any]]:
        """Queues in which runs wait, that are held, or for which something is set, by name."""
        return self._transport.items("/queues", dict[str, Any])

    def get(self, queue: str) -> dict[str, Any]:
        """The settings of a queue."""
        return self._transport.call("GET", f"/queues/{segment(queue)}", dict[str, Any])

    def set(self, queue: str, fair_weights: Mapping[str, int]) -> dict[str, Any]:
        """Set the weights of a queue's fairness keys; a key that is left out has the weight 1."""
        body = {"fair_weights": dict(fair_weights)}
        return self._transport.call("PUT", f"/queues/{segment(queue)}", dict[str, Any], body=body)
